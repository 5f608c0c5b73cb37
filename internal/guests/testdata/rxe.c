/*
 * rxe measures WRITEs over rdma_rxe into pinned memory, and into memory with absent pages
 * that is registered for on-demand paging.
 *
 * rxe NETDEV creates an rdma_rxe on a network device and connects two queue pairs of this
 * process over it. For each line of input it measures each case once, and prints a JSON
 * object: nanoseconds of each write, by "MODE SIZE PERCENT". It checks the number of absent
 * pages before each write, and every byte afterwards.
 */
#include <err.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define LARGEST (1 << 20)

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static unsigned char *src, *dst;
static struct ibv_mr *src_mr;

/* add_link creates an rdma_rxe, as `rdma link add rxe0 type rxe netdev` does. */
static void add_link(const char *netdev)
{
	struct {
		struct nlmsghdr h;
		unsigned char attrs[256];
	} m = { .h = { .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK), .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK } };
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		unsigned char rest[512];
	} answer;
	const struct {
		int type;
		const char *text;
	} attrs[] = { { RDMA_NLDEV_ATTR_DEV_NAME, "rxe0" }, { RDMA_NLDEV_ATTR_LINK_TYPE, "rxe" }, { RDMA_NLDEV_ATTR_NDEV_NAME, netdev } };
	size_t n = 0;
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);

	if (s < 0)
		err(1, "netlink of RDMA");
	for (size_t i = 0; i < sizeof attrs / sizeof attrs[0]; i++) {
		struct nlattr a = { .nla_type = attrs[i].type, .nla_len = NLA_HDRLEN + strlen(attrs[i].text) + 1 };

		memcpy(m.attrs + n, &a, sizeof a);
		strcpy((char *)m.attrs + n + NLA_HDRLEN, attrs[i].text);
		n += NLA_ALIGN(a.nla_len);
	}
	m.h.nlmsg_len = sizeof m.h + n;
	if (send(s, &m, m.h.nlmsg_len, 0) < 0 || recv(s, &answer, sizeof answer, 0) < (ssize_t)sizeof answer.h + 4)
		err(1, "a new rdma_rxe");
	if (answer.e.error && answer.e.error != -EEXIST) {
		errno = -answer.e.error;
		err(1, "a new rdma_rxe on %s", netdev);
	}
	close(s);
}

/* open_pair opens the device and two connected queue pairs. */
static void open_pair(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_device_attr_ex caps;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int index = 0;

	if (!c)
		err(1, "the device");
	if (ibv_query_device_ex(c, NULL, &caps) || ibv_query_port(c, 1, &port))
		err(1, "what the device can");
	if (!(caps.odp_caps.general_caps & IBV_ODP_SUPPORT) || !(caps.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE))
		errx(1, "this rdma_rxe has no on-demand paging of WRITE: %#x", caps.odp_caps.per_transport_caps.rc_odp_caps);
	while (ibv_query_gid(c, 1, index, &gid) || gid.raw[10] != 0xff) /* of an IPv4 address */
		if (++index >= port.gid_tbl_len)
			errx(1, "the device has no address of IPv4");
	pd = ibv_alloc_pd(c);
	cq = ibv_create_cq(c, 16, NULL, NULL, 0);
	if (!pd || !cq)
		err(1, "protection domain and completion queue");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

		qp[i] = ibv_create_qp(pd, &a);
		if (!qp[i])
			err(1, "queue pair");
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = qp[!i]->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 1 } },
		};
		struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };

		if (ibv_modify_qp(qp[i], &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
		    ibv_modify_qp(qp[i], &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
		    ibv_modify_qp(qp[i], &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
			err(1, "connecting the queue pairs");
	}
}

static void *map(void)
{
	void *p = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || madvise(p, LARGEST, MADV_NOHUGEPAGE))
		err(1, "memory");
	memset(p, 1, LARGEST);
	return p;
}

/* drop makes some pages of the destination absent; a single page in percent of the cases. */
static void drop(size_t size, int percent)
{
	unsigned char there[LARGEST / PAGE];
	size_t pages = size / PAGE, want = pages * percent / 100, absent = 0;

	if (pages * percent % 100 > (size_t)rand() % 100)
		want++;
	for (size_t left = want, i = 0; i < pages; i++)
		if ((size_t)rand() % (pages - i) < left) {
			left--;
			if (madvise(dst + i * PAGE, PAGE, MADV_DONTNEED))
				err(1, "madvise");
		}
	if (mincore(dst, size, there))
		err(1, "mincore");
	for (size_t i = 0; i < pages; i++)
		absent += !(there[i] & 1);
	if (absent != want)
		errx(1, "%zu pages are absent, want %zu", absent, want);
}

/* put writes once and returns the duration in ns. */
static long put(struct ibv_mr *to, size_t size)
{
	struct ibv_sge sge = { (uintptr_t)src, size, src_mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { (uintptr_t)dst, to->rkey } };
	struct timespec began, over;
	struct ibv_wc wc;
	int n;

	for (size_t i = 0; i < size; i += sizeof(int))
		*(int *)(src + i) = rand();
	clock_gettime(CLOCK_MONOTONIC, &began);
	if (ibv_post_send(qp[0], &wr, &bad))
		err(1, "posting");
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	clock_gettime(CLOCK_MONOTONIC, &over);
	if (n < 0 || wc.status)
		errx(1, "a write of %zu bytes: %s", size, n < 0 ? "polling" : ibv_wc_status_str(wc.status));
	if (memcmp(src, dst, size))
		errx(1, "a write of %zu bytes: wrong bytes", size);
	return (over.tv_sec - began.tv_sec) * 1000000000 + over.tv_nsec - began.tv_nsec;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *mode;
		int flag, size, percent, count;
	} cases[] = {
		{ "pinned", 0, PAGE, 0, 32 }, { "on demand", IBV_ACCESS_ON_DEMAND, PAGE, 0, 32 },
		{ "on demand", IBV_ACCESS_ON_DEMAND, PAGE, 5, 32 }, { "on demand", IBV_ACCESS_ON_DEMAND, PAGE, 100, 32 },
		{ "pinned", 0, LARGEST, 0, 4 }, { "on demand", IBV_ACCESS_ON_DEMAND, LARGEST, 0, 4 },
		{ "on demand", IBV_ACCESS_ON_DEMAND, LARGEST, 5, 4 }, { "on demand", IBV_ACCESS_ON_DEMAND, LARGEST, 100, 4 },
	};
	const int n = sizeof cases / sizeof cases[0];

	if (argc != 2)
		errx(2, "usage: rxe NETDEV");
	add_link(argv[1]);
	open_pair();
	src = map();
	src_mr = ibv_reg_mr(pd, src, LARGEST, 0);
	if (!src_mr)
		err(1, "registering the source");
	for (int c; (c = getchar()) == '\n';) {
		for (int i = 0; i < n; i++) {
			struct ibv_mr *mr;

			dst = map();
			mr = ibv_reg_mr(pd, dst, LARGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | cases[i].flag);
			if (!mr)
				err(1, "registering the destination, %s", cases[i].mode);
			put(mr, cases[i].size); /* a warm-up */
			printf("%s\"%s %d %d\":[", i ? "," : "{", cases[i].mode, cases[i].size, cases[i].percent);
			for (int k = 0; k < cases[i].count; k++) {
				drop(cases[i].size, cases[i].percent);
				printf("%s%ld", k ? "," : "", put(mr, cases[i].size));
			}
			printf("]");
			if (ibv_dereg_mr(mr) || munmap(dst, LARGEST))
				err(1, "letting the destination go");
		}
		printf("}\n");
		fflush(stdout);
	}
	return 0;
}
