// Package domain assigns protection domains: the sixteen slots of a node, PDIDs, groups and
// rights between domains, and users' quotas; it creates and destroys domains. It is the only
// writer of PD_CFG, PD_PEERS, PKTZ_CFG, MBOX_CFG and of the SMMU's stream matching and context
// banks (spec/hardware.md 3 and 5). It does not serve faults.
//
// Rights. A group is a (uid, name) pair of one pfd. It owns as many PDIDs as it may have
// processes on a node (DirectoryConfig.GroupSize), one per member index, the same on every node:
// the k-th process of the group on a node has the PDID of the k-th on every other node, and
// messages between equal PDIDs pass. Any other PDID passes only if PD_PEERS of the target's slot
// names it: the group's other PDIDs with Request.AcceptGroup, and those of Request.Accept and
// Grant.
package domain
