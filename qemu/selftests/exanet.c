/* Driver of a node for the kernel's VFIO tests (tools/testing/selftests/vfio in Linux).
 * The numbers beside the registers are sections of docs/spec/hardware.md.
 *
 * Slot 0 of the node has a domain that maps 512 GiB of addresses to themselves. A copy
 * is a transfer from that domain to itself.
 */
#include <unistd.h>

#include <linux/errno.h>
#include <linux/io.h>
#include <linux/pci_regs.h>
#include <linux/sizes.h>

#include <libvfio.h>

enum { VENDOR = 0x1234, DEVICE = 0xe4a0, VECTORS = 0xf, DONE_VECTOR = 3 };	/* 2 */
enum { PL, SMMU, BTCM };							/* 2: the BARs */
enum { NODE_ID = 0x10, CTRL = 0x18, IRQ_STATUS = 0x20, IRQ_MASK = 0x24, TIMEOUT_US = 0x30, GUARD_US = 0x38,
       OUTSTANDING = 0x40, RXFIFO = 0x1000, TXFIFO = 0x1100, FIFO_STATUS = 0x10, PD_CFG = 0x3000 };	/* 3 */
enum { ENABLE = 1, RESET = 2, FIFO_EMPTY = 1 << 17 };				/* 3 */
enum { SCR0 = 0, SMR = 0x800, S2CR = 0xc00, CBAR = 0x1000, CBA2R = 0x1800, BANK = 0x10000, SCTLR = BANK,
       TTBR0 = BANK + 0x20, TCR = BANK + 0x30, FSR = BANK + 0x58, TLBIALL = BANK + 0x618,
       TLBSYNC = BANK + 0x7f0, TLBSTATUS = BANK + 0x7f4 };			/* 5 */
enum { SRC = 0, DST = 8, NOTIFY = 16, SIZE = 40, DONE = 44, RESERVED0 = 48, RESERVED1 = 56,
       DESCRIPTOR = 64, DOORBELL = 0x10000, CHANNELS = 32 };			/* 6 */
enum { COMPLETED = 1, FAILED = 3 };		/* docs/spec/messages.md 1 */
#define ABORT (1ULL << 61)			/* docs/spec/messages.md 1 */
#define BLOCK 0x741ULL				/* valid, unprivileged, inner shareable, AF (Arm DDI 0487, D8.3) */
#define PDID 1ULL

struct state {
	u64 table[512];		/* level 1, one entry for each gigabyte */
	u64 from[8], to[8];	/* source and destination of send_msi */
	u32 generation;
	u32 copies;		/* in progress */
};

static struct state *state(struct vfio_pci_device *device)
{
	return device->driver.region.vaddr;
}

static void put(struct vfio_pci_device *device, int bar, u32 reg, u32 v)
{
	writel(v, device->bars[bar].vaddr + reg);
}

static u32 get(struct vfio_pci_device *device, int bar, u32 reg)
{
	return readl(device->bars[bar].vaddr + reg);
}

static int probe(struct vfio_pci_device *device)
{
	return vfio_pci_device_match(device, VENDOR, DEVICE) ? 0 : -ENODEV;
}

static void init(struct vfio_pci_device *device)
{
	struct state *s = state(device);
	void *smmu = device->bars[SMMU].vaddr, *pl = device->bars[PL].vaddr;
	u64 i;

	VFIO_ASSERT_GE(device->driver.region.size, sizeof(*s));
	vfio_pci_config_writew(device, PCI_COMMAND, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	put(device, PL, CTRL, RESET);
	put(device, PL, IRQ_MASK, VECTORS);
	/* A guest without KVM is too slow for a node's default time-outs. */
	put(device, PL, TIMEOUT_US, 1000000);
	put(device, PL, GUARD_US, 2000000);
	put(device, PL, OUTSTANDING, 8);

	for (i = 0; i < 512; i++)
		s->table[i] = i << 30 | BLOCK;
	put(device, SMMU, SCR0, 1 << 1 | 1 << 8 | 1 << 10);	/* GFRE, STALLD, USFCFG */
	put(device, SMMU, CBA2R, 1);				/* VA64 */
	put(device, SMMU, CBAR, 1 << 16);			/* stage 1 only */
	put(device, SMMU, TCR, 64 - 39);
	writeq(to_iova(device, s->table), smmu + TTBR0);
	put(device, SMMU, TLBIALL, 0);
	put(device, SMMU, FSR, ~0U);
	put(device, SMMU, SCTLR, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 8);	/* M, TRE, AFE, CFRE, HUPCF */
	put(device, SMMU, SMR, 1U << 31);
	put(device, SMMU, S2CR, 0);				/* translate by bank 0 */
	writeq(1ULL << 63 | (u64)++s->generation << 16 | PDID, pl + PD_CFG);
	put(device, PL, CTRL, ENABLE);

	vfio_pci_msix_enable(device, DONE_VECTOR, 1);
	device->driver.msi = DONE_VECTOR;
	device->driver.max_memcpy_size = SZ_4M;
	device->driver.max_memcpy_count = CHANNELS;
}

static void remove_node(struct vfio_pci_device *device)
{
	put(device, PL, CTRL, RESET);
	vfio_pci_msix_disable(device);
}

static void *descriptor(struct vfio_pci_device *device, u32 channel)
{
	return device->bars[BTCM].vaddr + DESCRIPTOR * channel;
}

/* ring starts the transfer of a complete descriptor, or aborts it. */
static void ring(struct vfio_pci_device *device, u32 channel, u64 flags)
{
	writeq((get(device, PL, NODE_ID) & 0x3fffff) | flags, descriptor(device, channel) + RESERVED0);
	if (!flags)
		writel(0, descriptor(device, channel) + DONE);
	writeq(channel + 1, device->bars[BTCM].vaddr + DOORBELL);
}

static void memcpy_start(struct vfio_pci_device *device, iova_t src, iova_t dst, u64 size, u64 count)
{
	struct state *s = state(device);

	for (s->copies = 0; s->copies < count; s->copies++) {
		void *d = descriptor(device, s->copies);

		writeq(src, d + SRC);
		writeq(dst, d + DST);
		writeq(0, d + NOTIFY);
		writel(size, d + SIZE);
		writeq((u64)s->generation << 32, d + RESERVED1);
		ring(device, s->copies, 0);
	}
}

static bool ended(struct vfio_pci_device *device, u32 channel)
{
	u32 done = readl(descriptor(device, channel) + DONE);

	return done == COMPLETED || done == FAILED;
}

static bool refused(struct vfio_pci_device *device, u32 fifo)
{
	return !(get(device, PL, fifo + FIFO_STATUS) & FIFO_EMPTY);
}

static int memcpy_wait(struct vfio_pci_device *device)
{
	struct state *s = state(device);
	bool aborted = false;
	int r = 0;
	u32 i, c;

	for (i = 0; i < s->copies; i++) {
		while (!ended(device, i)) {
			/* No page fault is served: abort the copies. */
			if (!aborted && (refused(device, RXFIFO) || refused(device, TXFIFO))) {
				for (c = i; c < s->copies; c++)
					ring(device, c, ABORT);
				aborted = true;
			}
			usleep(100);
		}
		if (readl(descriptor(device, i) + DONE) == FAILED)
			r = -EIO;
	}
	s->copies = 0;
	put(device, SMMU, TLBSYNC, 0);
	while (get(device, SMMU, TLBSTATUS) & 1)
		usleep(100);
	for (i = RXFIFO; i <= TXFIFO; i += TXFIFO - RXFIFO)
		while (refused(device, i))
			for (c = 0; c < 4; c++)
				get(device, PL, i + 4 * c);	/* the last pops */
	put(device, SMMU, FSR, ~0U);
	return r;
}

static void send_msi(struct vfio_pci_device *device)
{
	struct state *s = state(device);

	put(device, PL, IRQ_STATUS, VECTORS);
	put(device, PL, IRQ_MASK, VECTORS & ~(1 << DONE_VECTOR));
	memcpy_start(device, to_iova(device, s->from), to_iova(device, s->to), sizeof(s->to), 1);
	VFIO_ASSERT_EQ(memcpy_wait(device), 0);
	put(device, PL, IRQ_MASK, VECTORS);
	put(device, PL, IRQ_STATUS, VECTORS);
}

const struct vfio_pci_driver_ops exanet_ops = {
	.name = "exanet",
	.probe = probe,
	.init = init,
	.remove = remove_node,
	.memcpy_start = memcpy_start,
	.memcpy_wait = memcpy_wait,
	.send_msi = send_msi,
};
