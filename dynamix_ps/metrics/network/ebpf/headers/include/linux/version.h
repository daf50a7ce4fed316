/* Stands in for the kernel's header of this name. Programs of the kinds used here are not bound to a version. */
#ifndef DYNAMIX_LINUX_VERSION_H
#define DYNAMIX_LINUX_VERSION_H
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
#endif
