// Package gup makes pages of another process resident without its cooperation, without changing a
// byte and without pinning: get_user_pages from user space (000: Touch-Ahead; 002: get_user_pages
// and put_page).
//
// process_vm_writev and process_vm_readv pin the remote pages, which pages them in writable or
// readable, before they copy. The call's local side is memory that may not be touched, so the
// copy fails at its first byte and the kernel unpins the pages: they only stay resident. The
// errno is EFAULT in success and failure alike, so the result is read from pagemap
// (spec/faultpath.md, "Page-in methods").
package gup
