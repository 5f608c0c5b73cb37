// Package deploy holds tests of the programs as they are deployed: emulated nodes
// in a process of their own, one pfd or several above them, and transfers between
// processes, with each of them stopped and killed in the middle of it.
package deploy
