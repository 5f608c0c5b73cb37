//go:build !race

package serve

// rssSlack is how much the resident memory of the server may grow with a client.
const rssSlack = 16 << 20
