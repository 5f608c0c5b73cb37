// Package hosts reads hosts.toml, the file that lists the hosts of a cluster, and makes and checks
// the certificates by which they know each other (docs/hosts.md).
package hosts
