// Package packaging tests the Debian package that make deb builds: its files, its service unit,
// and its installation and removal on a separate system, also under a systemd that runs as the
// first process there.
package packaging
