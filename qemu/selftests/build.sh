# Usage: build.sh ROOT DIR
# Builds the kernel's VFIO tests for a guest, with our driver of a node. ROOT has Debian's
# compiler and the kernel's sources, DIR the driver.
set -e
root=$1
dir=$2
tests=usr/src/exanet/tools/testing/selftests/vfio
lib=$root/$tests/lib
mkdir -p "$lib/drivers/exanet" "$root/proc" "$root/dev" "$root/tmp"
cp "$dir/exanet.c" "$lib/drivers/exanet/exanet.c"
# Replace the tests' own drivers, which need further headers.
sed -i '/drivers\/exanet/d; s|^LIBVFIO_C += vfio_pci_driver.c|&\nLIBVFIO_C += drivers/exanet/exanet.c|; /LIBVFIO_C += drivers\/[^e]/d' "$lib/libvfio.mk"
sed -i '/exanet_ops/d; /driver_ops\[\] = {/,/^};/{/driver_ops\[\]/!{/^};/!d}}' "$lib/vfio_pci_driver.c"
sed -i 's|^static .*driver_ops\[\] = {|extern const struct vfio_pci_driver_ops exanet_ops;\n&\n\t(void *)\&exanet_ops,|' "$lib/vfio_pci_driver.c"
# Smaller sizes and longer time-outs for a guest without KVM on a busy host: a gigabyte in
# pages of 4 KiB takes 262,144 messages to the node, and a test may take only 30 s.
sed -i 's/SZ_1G/SZ_64M/; s/memcpy_storm, 60)/memcpy_storm, 300)/' "$root/$tests/vfio_pci_driver_test.c"
sed -i 's/^#define TEST_TIMEOUT_DEFAULT 30/#define TEST_TIMEOUT_DEFAULT 300/' "$root/$tests/../kselftest_harness.h"
for made in vfio_pci_driver_test.c:SZ_64M ../kselftest_harness.h:DEFAULT.300 lib/libvfio.mk:exanet lib/vfio_pci_driver.c:exanet; do
	grep -q "${made#*:}" "$root/$tests/${made%:*}" || { echo "the kernel's tests have changed: no ${made#*:} in ${made%:*}" >&2; exit 1; }
done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
gcc=$(cd "$root/usr/bin" && ls ./*gcc-[0-9]* | sed 's|^./||' | head -n 1)
flags=-static
# The release of Linux 7.2 calls calloc_assert but does not define it.
grep -q 'define calloc_assert' "$lib/include/libvfio/assert.h" || flags="$flags -Dcalloc_assert=calloc"
chroot "$root" /usr/bin/make -s -C "/$tests" "-j$(nproc)" CC="$gcc" EXTRA_CFLAGS="$flags"
