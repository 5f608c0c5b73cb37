# Builds the kernel's tests of VFIO for a guest, with a driver of ours for a node:
# build.sh ROOT DIR. ROOT has Debian's compiler and the kernel's sources, DIR the driver.
set -e
root=$1
dir=$2
tests=usr/src/exanet/tools/testing/selftests/vfio
lib=$root/$tests/lib
mkdir -p "$lib/drivers/exanet" "$root/proc" "$root/dev" "$root/tmp"
cp "$dir/exanet.c" "$lib/drivers/exanet/exanet.c"
if ! grep -q exanet "$lib/vfio_pci_driver.c"; then # it may have been broken off before
	sed -i 's|^LIBVFIO_C += vfio_pci_driver.c|&\nLIBVFIO_C += drivers/exanet/exanet.c|' "$lib/libvfio.mk"
	sed -i 's|^static .*driver_ops\[\] = {|extern const struct vfio_pci_driver_ops exanet_ops;\n&\n\t\&exanet_ops,|' "$lib/vfio_pci_driver.c"
fi
# A gigabyte in pages of 4 KiB is 262,144 messages to the node: on a guest without
# KVM a test would not end in its time.
sed -i 's/SZ_1G/SZ_64M/' "$root/$tests/vfio_pci_driver_test.c"
for made in vfio_pci_driver_test.c:SZ_64M lib/libvfio.mk:exanet lib/vfio_pci_driver.c:exanet; do
	grep -q "${made#*:}" "$root/$tests/${made%:*}" || { echo "the kernel's tests have changed: no ${made#*:} in ${made%:*}" >&2; exit 1; }
done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
# calloc_assert: the kernel's own sources name what they do not have (7.2).
chroot "$root" /usr/bin/make -s -C "/$tests" "-j$(nproc)" CC=gcc-"$(chroot "$root" /usr/bin/sh -c 'ls /usr/bin/gcc-[0-9]*' | sed 's/.*-//' | sort -n | tail -1)" \
	EXTRA_CFLAGS="-static -Dcalloc_assert=calloc"
