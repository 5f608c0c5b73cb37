/* What the provider offers, and whether it meets a program's hints (fi_getinfo(3)). */
#include <stdlib.h>
#include <string.h>

#include "fi.h"

#define DIRECTIONS_MESSAGE (FI_SEND | FI_RECV)
#define DIRECTIONS_RMA (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define PRIMARY (FI_MSG | FI_RMA | DIRECTIONS_MESSAGE | DIRECTIONS_RMA)
#define SECONDARY (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define TARGET (FI_REMOTE_READ | FI_REMOTE_WRITE)
/* A key is the provider's number, and an address is the one that the memory has at its process. */
#define MR_MODE (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define SEND_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define RECEIVE_FLAGS (FI_COMPLETION)
#define ORDER (FI_ORDER_SAS)
/* Of this provider: libfabric leaves these numbers to providers. */
enum { PROTOCOL_VERSION = VERSION };
#define PROTOCOL (FI_PROV_SPECIFIC | 0x6578)	/* "ex" */

static bool refuse(const char *what)
{
	FI_INFO(&exanet_provider, FI_LOG_CORE, "hints ask for what this provider has not: %s\n", what);
	return false;
}

static bool domain_fits(uint32_t version, const struct fi_info *hints)
{
	const struct fi_domain_attr *d = hints->domain_attr;
	if (d->control_progress == FI_PROGRESS_AUTO || d->data_progress == FI_PROGRESS_AUTO)
		return refuse("FI_PROGRESS_AUTO");
	if (d->cq_data_size > sizeof(uint64_t) || d->mr_iov_limit > IOVS || d->cntr_cnt > SHARED || d->max_err_data > CM_DATA)
		return refuse("limits of the domain");
	if (d->caps & ~SECONDARY || d->mr_key_size > sizeof(uint64_t))
		return refuse("capabilities of the domain");
	const int mode = d->mr_mode;
	const bool target = !hints->caps || hints->caps & TARGET || (hints->caps & FI_RMA && !(hints->caps & DIRECTIONS_RMA));
	if (mode & FI_MR_SCALABLE || (mode & FI_MR_BASIC && mode != FI_MR_BASIC))
		return refuse("a memory registration mode other than FI_MR_BASIC or FI_MR_VIRT_ADDR with FI_MR_PROV_KEY");
	if (version >= FI_VERSION(1, 5) && target && mode != FI_MR_UNSPEC && mode != FI_MR_BASIC && (mode & MR_MODE) != MR_MODE)
		return refuse("memory registration without FI_MR_VIRT_ADDR and FI_MR_PROV_KEY");
	return true;
}

static bool fits(uint32_t version, const struct fi_info *hints)
{
	const struct fi_ep_attr *e = hints->ep_attr;
	const struct fi_tx_attr *t = hints->tx_attr;
	const struct fi_rx_attr *r = hints->rx_attr;
	if (hints->caps & ~(PRIMARY | SECONDARY))
		return refuse("capabilities");
	if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != FI_SOCKADDR && hints->addr_format != FI_SOCKADDR_IN)
		return refuse("an address format");
	if (hints->domain_attr && !domain_fits(version, hints))
		return false;
	if (hints->domain_attr && hints->domain_attr->name && strcmp(hints->domain_attr->name, exanet_provider.name))
		return refuse("another domain");
	if (hints->fabric_attr && hints->fabric_attr->name && strcmp(hints->fabric_attr->name, exanet_provider.name))
		return refuse("another fabric");
	if (hints->fabric_attr && hints->fabric_attr->prov_version > exanet_provider.version)
		return refuse("a newer version");
	if (e && e->type != FI_EP_UNSPEC && e->type != FI_EP_MSG)
		return refuse("another type of endpoint");
	if (e && ((e->protocol != FI_PROTO_UNSPEC && e->protocol != PROTOCOL) || e->protocol_version > PROTOCOL_VERSION))
		return refuse("another protocol");
	if (e && (e->max_msg_size > MESSAGE_MOST || e->tx_ctx_cnt > 1 || (e->rx_ctx_cnt > 1 && e->rx_ctx_cnt != FI_SHARED_CONTEXT) ||
	    e->max_order_raw_size || e->max_order_war_size || e->max_order_waw_size || e->auth_key_size))
		return refuse("limits of the endpoint");
	if (t && (t->caps & ~(PRIMARY | SECONDARY) || t->op_flags & ~SEND_FLAGS || t->msg_order & ~ORDER || t->comp_order))
		return refuse("attributes of sending");
	if (t && (t->inject_size > INJECT || t->size > OPERATIONS || t->iov_limit > IOVS || t->rma_iov_limit > RMA_IOVS))
		return refuse("limits of sending");
	if (r && (r->caps & ~(PRIMARY | SECONDARY) || r->op_flags & ~RECEIVE_FLAGS || r->msg_order & ~ORDER || r->comp_order || r->total_buffered_recv))
		return refuse("attributes of receiving");
	if (r && (r->size > (e && e->rx_ctx_cnt == FI_SHARED_CONTEXT ? SHARED : OPERATIONS) || r->iov_limit > IOVS))
		return refuse("limits of receiving");
	return true;
}

/* capabilities returns those that an endpoint has for a program that asks for some. */
static uint64_t capabilities(uint64_t asked)
{
	if (!asked)
		return PRIMARY | SECONDARY;
	uint64_t caps = (asked & PRIMARY) | SECONDARY;
	if (caps & FI_MSG && !(caps & DIRECTIONS_MESSAGE))
		caps |= DIRECTIONS_MESSAGE;
	if (caps & FI_RMA && !(caps & DIRECTIONS_RMA))
		caps |= DIRECTIONS_RMA;
	return caps;
}

static int mr_mode(uint32_t version, const struct fi_domain_attr *hints, uint64_t caps)
{
	if (version < FI_VERSION(1, 5) || (hints && hints->mr_mode == FI_MR_BASIC))
		return FI_MR_BASIC;
	/* A process whose memory no peer accesses may have said that it knows neither. */
	return caps & TARGET || !hints ? MR_MODE : MR_MODE & hints->mr_mode;
}

static void fill(uint32_t version, const struct fi_info *hints, struct fi_info *i)
{
	const struct fi_ep_attr *e = hints ? hints->ep_attr : NULL;
	const struct fi_tx_attr *t = hints ? hints->tx_attr : NULL;
	const struct fi_rx_attr *r = hints ? hints->rx_attr : NULL;
	const struct fi_domain_attr *d = hints ? hints->domain_attr : NULL;
	const bool shared = e && e->rx_ctx_cnt == FI_SHARED_CONTEXT;
	i->caps = capabilities(hints ? hints->caps : 0);
	i->addr_format = FI_SOCKADDR_IN;
	i->handle = hints ? hints->handle : NULL;
	*i->tx_attr = (struct fi_tx_attr){
		.caps = i->caps & (FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE), .msg_order = ORDER,
		/* A message's completion means that its memory may be used again. */
		.op_flags = t && t->op_flags ? t->op_flags : FI_INJECT_COMPLETE, .inject_size = INJECT,
		.size = t && t->size ? t->size : OPERATIONS, .iov_limit = IOVS, .rma_iov_limit = RMA_IOVS,
	};
	*i->rx_attr = (struct fi_rx_attr){
		.caps = i->caps & (FI_MSG | FI_RMA | FI_RECV | TARGET), .msg_order = ORDER, .op_flags = r ? r->op_flags : 0,
		.size = r && r->size ? r->size : OPERATIONS, .iov_limit = IOVS,
	};
	*i->ep_attr = (struct fi_ep_attr){
		.type = FI_EP_MSG, .protocol = PROTOCOL, .protocol_version = PROTOCOL_VERSION, .max_msg_size = MESSAGE_MOST,
		.tx_ctx_cnt = 1, .rx_ctx_cnt = shared ? FI_SHARED_CONTEXT : 1,
	};
	*i->domain_attr = (struct fi_domain_attr){
		.threading = d && d->threading ? d->threading : FI_THREAD_SAFE,
		.control_progress = FI_PROGRESS_MANUAL, .data_progress = FI_PROGRESS_MANUAL, .resource_mgmt = FI_RM_ENABLED,
		.av_type = d ? d->av_type : FI_AV_UNSPEC, .mr_mode = mr_mode(version, d, i->caps), .mr_key_size = sizeof(uint64_t),
		.cq_data_size = sizeof(uint64_t), .cq_cnt = SHARED, .ep_cnt = SHARED, .tx_ctx_cnt = 1, .rx_ctx_cnt = 1,
		.max_ep_tx_ctx = 1, .max_ep_rx_ctx = 1, .max_ep_srx_ctx = SHARED, .cntr_cnt = SHARED, .mr_iov_limit = IOVS,
		.caps = SECONDARY, .max_err_data = CM_DATA, .mr_cnt = SIZE_MAX,
	};
	i->domain_attr->name = strdup(exanet_provider.name);
	i->fabric_attr->name = strdup(exanet_provider.name);
	i->fabric_attr->prov_version = exanet_provider.version;
	i->fabric_attr->api_version = version;
}

static bool address(void **to, size_t *size, const struct sockaddr_in *a)
{
	if (!(*to = malloc(sizeof *a)))
		return false;
	memcpy(*to, a, sizeof *a);
	*size = sizeof *a;
	return true;
}

/* addresses determines the address of this end, and of the other if there is one. */
static int addresses(const struct attachment *a, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	struct sockaddr_in *own, struct sockaddr_in *peer)
{
	*own = *peer = a->address;
	peer->sin_family = 0;
	if (hints && hints->src_addr) {
		struct sockaddr_in given;
		if (hints->src_addrlen < sizeof given)
			return -FI_ENODATA;
		memcpy(&given, hints->src_addr, sizeof given);
		if (given.sin_family != AF_INET || (given.sin_addr.s_addr && given.sin_addr.s_addr != own->sin_addr.s_addr))
			return -FI_ENODATA;	/* another interface of this machine */
		if (given.sin_port)
			own->sin_port = given.sin_port;
	}
	if (hints && hints->dest_addr && address_check(hints->dest_addr, hints->dest_addrlen, peer))
		return -FI_ENODATA;
	if (!node && !service)
		return 0;
	if (flags & FI_SOURCE) {
		const struct in_addr self = own->sin_addr;
		if (address_parse(node, service, own) || own->sin_addr.s_addr != self.s_addr)
			return -FI_ENODATA;
		return 0;
	}
	if (!node)
		return -FI_ENODATA;
	peer->sin_family = AF_INET;
	peer->sin_port = 0;
	return address_parse(node, service, peer);
}

int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **out)
{
	struct sockaddr_in own, peer;
	*out = NULL;
	if (hints && !fits(version, hints))
		return -FI_ENODATA;
	struct attachment *a = attachment_get();
	if (!a || addresses(a, node, service, flags, hints, &own, &peer))
		return -FI_ENODATA;
	struct fi_info *i = fi_allocinfo();
	if (!i)
		return -FI_ENOMEM;
	fill(version, hints, i);
	if (!i->domain_attr->name || !i->fabric_attr->name || !address(&i->src_addr, &i->src_addrlen, &own) ||
	    (peer.sin_family && !address(&i->dest_addr, &i->dest_addrlen, &peer))) {
		fi_freeinfo(i);
		return -FI_ENOMEM;
	}
	*out = i;
	return 0;
}
