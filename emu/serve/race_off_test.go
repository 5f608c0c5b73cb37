//go:build !race

package serve

// rssSlack is how much more the server may have in memory after a client than before.
const rssSlack = 16 << 20
