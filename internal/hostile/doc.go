// Package hostile tests pfd against hostile users of a shared machine: peers that lie, take all
// resources, hang, or die at any moment. Real processes attack a real pfd. Each test shows a
// clear error for the attacker, a counter that recorded the attack, and a bystander whose
// transfers all arrive meanwhile. The package exports nothing.
//
// The attacks by forged data and by taking resources, what refuses each, and the counter of
// `exanetctl counter` that records it:
//
//	forged                                   refused by, with            counter
//	a fault message to a process             the kernel: ECONNREFUSED    none: no socket receives it
//	- over a socket that is not connected    the library drops it        Stats.FaultsForged
//	- to pfd's own socket                    pfd drops it                netlink_strays_total
//	an acknowledgement                       packetizer: refused         mbox_refused_total
//	a RAPF for another domain's transfer     the firmware ignores it     rapf_denied_total
//	a RAPF with an old sequence number       the firmware ignores it     rapf_stale_total
//	a RAPF of no transaction                 the firmware ignores it     msg_dropped_total, rapf_stale_total
//	a doorbell for another page              the node ignores it         doorbell_denied_total
//	a descriptor changed after the doorbell  none: the engine uses the   none: the change is not read
//	                                         copy that it has taken
//	a wild address: past the width           status 2 at the doorbell    doorbell_denied_total
//	- not mapped, not permitted              status 2 after the fault    failed_resolutions_total
//	a wild node                              status 2 at the doorbell    doorbell_denied_total
//	a wild PDID                              status 5                    nacks_5_total
//	a wild channel number                    the engine ignores it       doorbell_denied_total, bad_access_total
//	a domain that has not admitted us        status 5                    nacks_5_total
//	- the same by a read                     status 5                    doorbell_denied_total
//	an attachment of wrong sizes, types or   refused with the reason     attachments_refused_total
//	descriptors
//	a shrunk memfd                           the kernel: EPERM (seals)   none: it does not happen
//	a descriptor that closes slowly          the kernel: EPERM           none: it does not happen
//	- where one is expected                  none: pfd does not wait     none: it has no effect
//	a hole in the memfd                      the kernel: EPERM (seals)   none: it does not happen
//	an eventfd made blocking                 none: pfd never waits       none: it has no effect
//	                                         for one
//
//	taken
//	a seventeenth domain                     refused with the reason     attachments_refused_total
//	a slot above a user's share              refused with the reason     attachments_refused_total
//	all 64 channels for ever                 the library: ErrBusy; a     leases_lost_total
//	                                         doorbell of a busy channel
//	                                         is ignored: a transfer that
//	                                         is announced twice starts
//	                                         once
//	the 513th FIFO entry                     the FIFO drops it; the      fifo_overflow_total
//	                                         guard time-out recovers
//	a netlink socket that is not read        the kernel: EAGAIN; its     netlink_full_total
//	                                         own transfers fail
//	a flood of connections                   dropped beyond a user's     connections_dropped_total,
//	                                         share; stalled handshakes   attachments_refused_total
//	a flood of the log                       lines beyond the rate are   exanet_log_lines_held_back_total
//	                                         held back                   (of /metrics)
//
// Accesses without the right to them, and what refuses each:
//
//	a connection of a process that became    the kernel: pfd and helper have the user's
//	a set-uid program, or one with a file    rights and no others
//	capability
//	another user's process as keeper, or as  the same
//	the process that a helper serves
//	uid 0 without capabilities               the same: its own helper serves it
//	a member of a group that may not access  pfd, at attaching: a proof in memory, or the
//	the others' memory by ptrace(2)          group's key
//	a program executed later, even if the    the kernel: a keeper names one address space
//	old memory is still alive
//	memory that was unmapped or mapped       the kernel: not one byte
//	over, a forked child's copy
//	memory that mprotect(2) closed           the kernel, except copies in progress:
//	                                         TestNoByteWhereItMayNot measures it
package hostile
