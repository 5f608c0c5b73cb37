//go:build race

package serve

// rssSlack is how much the resident memory of the server may grow with a client: 16 MiB, which the race
// detector multiplies by 5 to 10.
const rssSlack = 10 * 16 << 20
