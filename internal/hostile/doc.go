// Package hostile holds the tests of what a shared machine does to pfd: peers
// that lie, take everything, hang, or die at any moment. Real processes against
// a real pfd; each test shows a clear error for the offender, a counter that saw
// it, and a bystander whose transfers all arrive meanwhile. There is no code to
// be used by others.
package hostile
