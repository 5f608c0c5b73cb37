// Package gup makes pages of another process resident from outside, without
// its help, without changing a byte and without pinning: get_user_pages from
// user space (000: Touch-Ahead; 002: get_user_pages and put_page).
//
// process_vm_writev and process_vm_readv pin the remote pages, and thereby page
// them in, writable or readable, before they copy. The local side of the call
// is memory that may not be touched, so the copy fails at its first byte and
// the pages are let go again: all that stays is that they are there. The errno
// is EFAULT in success and failure alike, so the result is read from pagemap
// (spec/faultpath.md, "Page-in methods").
package gup
