//go:build race

package serve

// rssSlack is how much more the server may have in memory after a client than before:
// 16 MiB, which the race detector makes 5 to 10 times as much.
const rssSlack = 10 * 16 << 20
