// Package packaging holds the tests of what make deb makes: the package's
// files, its service unit, and its coming and going on a system of its own,
// also under a systemd that is the first process there.
package packaging
