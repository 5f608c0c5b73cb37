# Builds the kernel's tests of VFIO for a guest, with a driver of ours for a node:
# build.sh ROOT DIR. ROOT has Debian's compiler and the kernel's sources, DIR the driver.
set -e
root=$1
dir=$2
tests=usr/src/exanet/tools/testing/selftests/vfio
lib=$root/$tests/lib
mkdir -p "$lib/drivers/exanet" "$root/proc" "$root/dev" "$root/tmp"
cp "$dir/exanet.c" "$lib/drivers/exanet/exanet.c"
# In place of the drivers that the tests have; those want headers from elsewhere.
sed -i '/drivers\/exanet/d; s|^LIBVFIO_C += vfio_pci_driver.c|&\nLIBVFIO_C += drivers/exanet/exanet.c|; /LIBVFIO_C += drivers\/[^e]/d' "$lib/libvfio.mk"
sed -i '/exanet_ops/d; /driver_ops\[\] = {/,/^};/{/driver_ops\[\]/!{/^};/!d}}' "$lib/vfio_pci_driver.c"
sed -i 's|^static .*driver_ops\[\] = {|extern const struct vfio_pci_driver_ops exanet_ops;\n&\n\t(void *)\&exanet_ops,|' "$lib/vfio_pci_driver.c"
# For a guest without KVM on a busy host. A gigabyte in pages of 4 KiB is 262,144
# messages to the node, and a test has half a minute.
sed -i 's/SZ_1G/SZ_64M/; s/memcpy_storm, 60)/memcpy_storm, 300)/' "$root/$tests/vfio_pci_driver_test.c"
sed -i 's/^#define TEST_TIMEOUT_DEFAULT 30/#define TEST_TIMEOUT_DEFAULT 300/' "$root/$tests/../kselftest_harness.h"
for made in vfio_pci_driver_test.c:SZ_64M ../kselftest_harness.h:DEFAULT.300 lib/libvfio.mk:exanet lib/vfio_pci_driver.c:exanet; do
	grep -q "${made#*:}" "$root/$tests/${made%:*}" || { echo "the kernel's tests have changed: no ${made#*:} in ${made%:*}" >&2; exit 1; }
done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
gcc=$(cd "$root/usr/bin" && ls ./*gcc-[0-9]* | sed 's|^./||' | head -n 1)
flags=-static
# Linux 7.2 as it came out names what it does not have.
grep -q 'define calloc_assert' "$lib/include/libvfio/assert.h" || flags="$flags -Dcalloc_assert=calloc"
chroot "$root" /usr/bin/make -s -C "/$tests" "-j$(nproc)" CC="$gcc" EXTRA_CFLAGS="$flags"
