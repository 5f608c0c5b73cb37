// Package hosts tests pfds of several hosts, which are network namespaces, with an exanet-hostd
// each.
package hosts
