/* Stands in for the kernel's header of this name: the programs here need none of its settings. */
#ifndef DYNAMIX_LINUX_KCONFIG_H
#define DYNAMIX_LINUX_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#define CONFIG_64BIT 1
#endif
