// Package deploy has the table of the devices that the programs are tested with; each test runs
// with all of them. Its own tests run the programs as they are deployed: emulated nodes in a
// process of their own, one or several pfds above them, and transfers between processes. The
// tests stop and kill each of these processes during transfers.
package deploy
