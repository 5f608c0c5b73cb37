# Builds iommufd and VFIO with devices' own files and without an IOMMU as modules of
# a stock kernel: modules.sh ROOT RELEASE, in namespaces of its own. What Kconfig
# would say is said on the command line, to make and to the compiler.
set -e
root=$1
release=$2
src=$root/usr/src/exanet
# Of lib/interval_tree.c the kernel lacks the part that iommufd uses.
{
	echo '#include <linux/interval_tree.h>'
	echo '#include <linux/export.h>'
	sed -n '/^#ifdef CONFIG_INTERVAL_TREE_SPAN_ITER/,/^#endif/p' "$src/lib/interval_tree.c"
} >"$src/drivers/iommu/iommufd/span.c"
echo 'iommufd-y += span.o' >>"$src/drivers/iommu/iommufd/Makefile"
echo 'obj-m += drivers/iommu/iommufd/ drivers/vfio/' >"$src/Kbuild"
ln -sf mawk "$root/usr/bin/awk" # as its package does when it is installed
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
flags=
for option in IOMMUFD_MODULE IOMMUFD_DRIVER_CORE_MODULE VFIO_DEVICE_CDEV VFIO_NOIOMMU INTERVAL_TREE_SPAN_ITER; do
	flags="$flags -DCONFIG_$option=1"
done
chroot "$root" /usr/bin/make -s -C "/usr/src/linux-headers-$release" M=/usr/src/exanet "-j$(nproc)" modules \
	CONFIG_IOMMUFD=m CONFIG_IOMMUFD_DRIVER_CORE=m CONFIG_VFIO_DEVICE_CDEV=y CONFIG_VFIO_NOIOMMU=y \
	CONFIG_INTERVAL_TREE_SPAN_ITER=y CONFIG_DEBUG_INFO_BTF_MODULES= KCFLAGS="$flags"
find "$src" -name '*.ko' | while read -r module; do
	chroot "$root" /usr/bin/strip --strip-debug "${module#"$root"}"
done
