/* The entry point, the parameters FI_EXANET_*, and the attachment of the process. */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fi.h"

enum { KEY = 32, GROUP = 64, RANKS_OF_A_NODE = 16, NODES = 64 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;	/* guards the attachment's life */
static struct attachment *attachment;

static void warn(const char *remedy)
{
	FI_WARN(&exanet_provider, FI_LOG_CORE, "%s%s%s\n", exanet_error(), *remedy ? ": " : "", remedy);
}

/* number_of reads an environment variable, -1: it is not set to a number. */
static long number_of(const char *name)
{
	const char *text = getenv(name);
	char *end;
	const long n = text ? strtol(text, &end, 10) : -1;
	return text && *text && !*end ? n : -1;
}

/* group_of_job writes the group of the ranks that have a PMIX_NAMESPACE, and of those that they start with
 * MPI_Comm_spawn: Open MPI 4 numbers the latter in the low 16 bits of a number, and Open MPI 5 after an @. The group
 * has the end of a long name, because that tells jobs apart, and no characters that a group's name has not. */
static void group_of_job(const char *job, char *to)
{
	char *end;
	const unsigned long number = strtoul(job, &end, 10);
	const char *at = strrchr(job, '@');
	const size_t n = at ? (size_t)(at - job) : strlen(job), most = GROUP - sizeof "fi-", skipped = n > most ? n - most : 0;
	if (!*end && number >> 16)
		snprintf(to, GROUP, "fi-%lu", number >> 16);
	else
		snprintf(to, GROUP, "fi-%.*s", (int)(n - skipped), job + skipped);
	for (; *to; to++)
		if (!isalnum((unsigned char)*to) && !strchr("._-", *to))
			*to = '_';
}

/* group_name returns the group of a job's ranks: the parameter, the name of the job, or the user. */
static const char *group_name(char *to)
{
	const char *ranks = getenv("PMIX_NAMESPACE"), *job = getenv("SLURM_JOB_ID");
	char *set = NULL;
	if (!fi_param_get_str(&exanet_provider, "group", &set))
		return set;
	if (ranks && *ranks)
		group_of_job(ranks, to);
	else if (job && *job)
		snprintf(to, GROUP, "fi-%.60s", job);
	else
		snprintf(to, GROUP, "fi-uid-%u", (unsigned)geteuid());
	return to;
}

/* read_key reads FI_EXANET_KEY_FILE: 1, 0: it is not set, -1: it is wrong. */
static int read_key(unsigned char *key)
{
	char *path = NULL;
	unsigned char more[KEY + 1];
	if (fi_param_get_str(&exanet_provider, "key_file", &path))
		return 0;
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : read(fd, more, sizeof more);
	const int error = errno;
	if (fd >= 0)
		close(fd);
	if (n == KEY) {
		memcpy(key, more, KEY);
		return 1;
	}
	FI_WARN(&exanet_provider, FI_LOG_CORE, "FI_EXANET_KEY_FILE=%s: %s: make it with: head -c %d /dev/urandom >FILE\n",
		path, n < 0 ? strerror(error) : "a key has exactly 32 bytes", KEY);
	return -1;
}

static bool is_full(int error) { return error == -EAGAIN || error == -EDQUOT; }

/* attach attaches to the node of FI_EXANET_NODE. Without it, 16 ranks of a machine begin at one node, the next 16
 * at the next one, and each takes the first node that has a place. */
static exanet *attach(void)
{
	exanet *e = NULL;
	char group[GROUP], *socket = NULL;
	unsigned char key[KEY];
	int node = -1, error;
	const int keyed = read_key(key);
	if (keyed < 0)
		return NULL;
	fi_param_get_str(&exanet_provider, "socket", &socket);
	struct exanet_options o = { .socket = socket, .group = group_name(group), .key = keyed ? key : NULL, .flags = EXANET_ACCEPT_GROUP };
	if (!fi_param_get_int(&exanet_provider, "node", &node)) {
		o.node = (uint32_t)node;
		error = exanet_attach(&e, &o);
		if (error)
			warn(error == -ENODEV ? "set FI_EXANET_NODE to a node that exanetctl status lists" :
			     is_full(error) ? "set FI_EXANET_NODE to another node, or unset it" : "");
		return e;
	}
	long rank = number_of("OMPI_COMM_WORLD_LOCAL_RANK");
	if (rank < 0)
		rank = number_of("SLURM_LOCALID");
	const long wanted = rank < 0 ? 0 : rank / RANKS_OF_A_NODE % NODES;
	o.flags |= EXANET_PLACE;	/* the ids of another machine's nodes begin elsewhere */
	for (long n = wanted, nodes = NODES, full = 0;;) {	/* nodes: at most; pfd does not tell how many it has */
		o.node = (uint32_t)n;
		error = exanet_attach(&e, &o);
		if (error == -EPROTO && o.flags & EXANET_PLACE) {
			o.flags &= ~EXANET_PLACE;	/* an older pfd, whose ids begin at 0 */
		} else if (error == -ENODEV && n > 0) {
			nodes = n;
			n = wanted % nodes;
		} else if (is_full(error) && ++full <= nodes) {
			n = (n + 1) % nodes;
		} else {
			break;
		}
	}
	if (error)
		warn(is_full(error) ? "no other node has a place either" :
		     error == -EPERM ? "set FI_EXANET_SOCKET to a pfd of your own, or to the machine's" :
		     error == -ENOENT || error == -ECONNREFUSED ? "set FI_EXANET_SOCKET to the control socket of a running pfd" : "");
	return e;
}

/* release detaches, with opening held. */
static void release(void)
{
	struct attachment *a = attachment;
	attachment = NULL;
	if (!a)
		return;
	if (exanet_close(a->exanet))
		warn("");
	while (!list_empty(&a->unused)) {
		struct op *op = element(a->unused.next, struct op, link);
		list_remove(&op->link);
		free(op);
	}
	pthread_mutex_destroy(&a->lock);
	free(a);
}

bool attachment_gone(struct attachment *a)
{
	const uint64_t word = 0;
	if (!a->gone && exanet_wait_word(a->exanet, &word, 1, 0) == -ENOTCONN)
		a->gone = true;
	return a->gone;
}

/* get returns the attachment, with opening held. A forked child and a process whose pfd has ended attach again. */
static struct attachment *get(void)
{
	if (attachment && attachment->pid != getpid())
		attachment = NULL;	/* objects of the parent may refer to it */
	if (attachment && !attachment->fabrics && attachment_gone(attachment))
		release();
	if (attachment)
		return attachment;
	struct attachment *a = calloc(1, sizeof *a);
	if (!a)
		return NULL;
	if (!(a->exanet = attach())) {
		free(a);
		return NULL;
	}
	struct exanet_remote self;
	exanet_export(a->exanet, NULL, 1, &self);
	pthread_mutex_init(&a->lock, NULL);
	a->pid = getpid();
	a->address = address_of(&self, 0);
	list_init(&a->connected);
	list_init(&a->opening);
	list_init(&a->listeners);
	list_init(&a->requests);
	list_init(&a->transfers);
	list_init(&a->unused);
	return attachment = a;
}

struct attachment *attachment_get(void)
{
	pthread_mutex_lock(&opening);
	struct attachment *a = get();
	pthread_mutex_unlock(&opening);
	return a;
}

struct attachment *attachment_use(void)
{
	pthread_mutex_lock(&opening);
	struct attachment *a = get();
	if (a)
		a->fabrics++;
	pthread_mutex_unlock(&opening);
	return a;
}

void attachment_leave(struct attachment *a)
{
	pthread_mutex_lock(&opening);
	if (!--a->fabrics && a == attachment)
		release();
	pthread_mutex_unlock(&opening);
}

/* cleanup is called when the process ends. A program that left its fabric open is detached by the kernel. */
static void cleanup(void)
{
	pthread_mutex_lock(&opening);
	if (attachment && !attachment->fabrics && attachment->pid == getpid())
		release();
	pthread_mutex_unlock(&opening);
}

struct fi_provider exanet_provider = {
	.version = FI_VERSION(1, 0), .fi_version = FI_VERSION(1, 17), .name = "exanet",
	.getinfo = info_get, .fabric = fabric_open, .cleanup = cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);

struct fi_provider *fi_prov_ini(void)
{
	/* ofi_rxm, which is initialized after this, sends messages of 16 to 128 KiB in segments. Version 1.17 does not
	 * take those rightly for MPI_Mprobe (FI_CLAIM), and reads of the sender's memory take a third of their time. */
	setenv("FI_OFI_RXM_SAR_LIMIT", "0", 0);
	fi_param_define(&exanet_provider, "socket", FI_PARAM_STRING,
		"Control socket of pfd (default: the one that pfd has when it is started without --socket)");
	fi_param_define(&exanet_provider, "node", FI_PARAM_INT,
		"Node of pfd that this process attaches to (default: the first that has a place, from the local rank divided by 16 on)");
	fi_param_define(&exanet_provider, "group", FI_PARAM_STRING,
		"Name of the group that the processes of a job form (default: the job's name in PMIX_NAMESPACE or SLURM_JOB_ID, or the user)");
	fi_param_define(&exanet_provider, "key_file", FI_PARAM_STRING,
		"File of 32 secret bytes that the users of a job share (default: none; a group then has one user)");
	return &exanet_provider;
}
