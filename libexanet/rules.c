/* Rules that libexanet and package rdma share: docs/attach.md 1 and 10 state them, and
 * attach/testdata/rules.txt has cases of each, which the tests of both libraries read. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

#define MACHINE_DIRECTORY "/run/exanet"

enum { OVERFLOW_UID = 65534 };	/* every user that a user namespace does not map (user_namespaces(7)) */

const char machine_directory[] = MACHINE_DIRECTORY;

bool rule_find(char *path, size_t size, uid_t euid, const char *runtime, const char *user, bool (*exists)(const char *))
{
	static const char machine[] = MACHINE_DIRECTORY "/pfd.sock";
	char first[PATH_SIZE] = "";	/* the one that a pfd with this environment would create */
	for (const char *dir = runtime ? runtime : "", *end; *dir; dir = *end ? end + 1 : end) {
		end = strchrnul(dir, ':');
		if (end == dir)
			continue;
		snprintf(path, size, "%.*s/pfd.sock", (int)(end - dir), dir);
		if (exists(path))
			return true;
		if (!*first)
			snprintf(first, sizeof first, "%s", path);
	}
	if (euid && user && *user) {
		snprintf(path, size, "%s/exanet/pfd.sock", user);
		if (exists(path))
			return true;
		if (!*first)
			snprintf(first, sizeof first, "%s", path);
	}
	snprintf(path, size, "%s", exists(machine) || (!*first && !euid) ? machine : first);
	return *path;
}

bool rule_same(uid_t a, uid_t b) { return a == b && a != OVERFLOW_UID; }

static bool trusted(uid_t uid, uid_t euid, const uint32_t *trust, unsigned ntrust)
{
	bool yes = !uid || rule_same(uid, euid);
	for (unsigned i = 0; i < ntrust; i++)
		yes |= trust[i] == uid;
	return yes;
}

bool rule_server(uid_t uid, uid_t euid, const uint32_t *trust, unsigned ntrust, const char *socket, uid_t owner)
{
	const size_t n = sizeof machine_directory - 1;
	if (trusted(uid, euid, trust, ntrust))
		return true;
	return !strncmp(socket, machine_directory, n) && socket[n] == '/' && !strchr(socket + n + 1, '/') && rule_same(uid, owner);
}

bool rule_program(uid_t owner, mode_t mode, uid_t euid, const uint32_t *trust, unsigned ntrust)
{
	return S_ISREG(mode) && !(mode & 022) && trusted(owner, euid, trust, ntrust);
}
