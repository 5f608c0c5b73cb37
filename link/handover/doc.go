// Package handover is the socket between exanet-hostd, which has the network, and pfd, which has
// none. exanet-hostd sends the table of hosts and connected sockets. pfd answers which hosts it
// wants to be dialed.
//
// The socket is of type SOCK_SEQPACKET: one packet is one message, a JSON object of at most
// MaxMessage bytes, with at most one descriptor (docs/spec/hosts.md 6).
package handover
