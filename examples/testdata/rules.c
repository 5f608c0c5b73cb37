/* rules FILE: checks the cases of attach/testdata/rules.txt against libexanet's rules. It prints the
 * differences and the number of cases. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libexanet/internal.h"

static const char *existing;	/* names with commas between them */

static bool exists(const char *path)
{
	const size_t n = strlen(path);
	for (const char *at = existing; (at = strstr(at, path)); at += n)
		if ((at == existing || at[-1] == ',') && (!at[n] || at[n] == ','))
			return true;
	return false;
}

static unsigned numbers(const char *words, uint32_t *list)
{
	unsigned n = 0;
	for (char *end; *words && n < 8; words = *end ? end + 1 : end)
		list[n++] = strtoul(words, &end, 10);
	return n;
}

int main(int argc, char **argv)
{
	static char line[512], path[PATH_SIZE];
	int count = 0, wrong = 0;
	FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
	if (!f)
		return 2;
	while (fgets(line, sizeof line, f)) {
		char text[sizeof line], *w[8];
		const char *got;
		uint32_t trust[8];
		int n = 0;
		line[strcspn(line, "#\n")] = 0;
		strcpy(text, line);
		for (char *word = strtok(line, " "); word && n < 8; word = strtok(NULL, " "))
			w[n++] = strcmp(word, "-") ? word : "";
		if (!n)
			continue;
		if (!strcmp(w[0], "find") && n == 6) {
			existing = w[4];
			got = rule_find(path, sizeof path, atoi(w[1]), w[2], w[3], exists) ? path : "";
		} else if (!strcmp(w[0], "same") && n == 4) {
			got = rule_same(atoi(w[1]), atoi(w[2])) ? "yes" : "no";
		} else if (!strcmp(w[0], "server") && n == 7) {
			got = rule_server(atoi(w[1]), atoi(w[2]), trust, numbers(w[3], trust), w[4], atoi(w[5])) ? "yes" : "no";
		} else if (!strcmp(w[0], "program") && n == 6) {
			got = rule_program(atoi(w[1]), strtoul(w[4], NULL, 8), atoi(w[2]), trust, numbers(w[3], trust)) ? "yes" : "no";
		} else {
			printf("%s: %d words that are no case\n", text, n);
			wrong++;
			continue;
		}
		count++;
		if (strcmp(got, w[n - 1])) {
			printf("%s: got \"%s\"\n", text, got);
			wrong++;
		}
	}
	printf("%d cases, %d wrong\n", count, wrong);
	return wrong || !count;
}
