/* Included by bcc's own headers; nothing of the kernel's header of this name is needed. */
