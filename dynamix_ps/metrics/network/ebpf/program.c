/* TCP connections of the watched processes, with the counters that the kernel keeps for each.
 *
 * bcc compiles this program. The offsets of fields (AT_...) come from the running kernel's type information, see
 * collector.py; no kernel header is used. Nothing runs per packet: the program notes a connection when its process opens,
 * writes or reads it, and copies its counters when user space asks (`refresh`) and once more when it closes.
 *
 * The kernel's counters include one byte for SYN and FIN each; here only payload counts (while data is in flight,
 * bytes_out may still contain the SYN).
 */

#define INLINE static inline __attribute__((always_inline))

#define FAMILY_IPV4 2
#define FAMILY_IPV6 10
#define PROTOCOL_TCP 6
#define STATE_SYN_SENT 2
#define STATE_CLOSE 7
#define STATE_LISTEN 10
#define FLAG_FIN_RECEIVED (1 << 1) /* SOCK_DONE, bit 1 of enum sock_flags */

#define YOUNG_NS 1000000000 /* after this time a connection must have left CLOSE */

/* What `refresh` returns. */
#define REFRESHED 0
#define PASSED_OVER 1 /* closed in the meantime, or of another process */

struct connection {
    u64 born_ns;
    u64 inode;
    u64 bytes_out;
    u64 bytes_in;
    u32 retransmits;
    u32 srtt_us8; /* eighths of a microsecond */
    u32 busy_ticks;
    u32 unsent;
    u32 unread;
    u32 pid;
    u32 netns;
    u16 family;
    u16 local_port;  /* network order, like the next */
    u16 remote_port;
    u16 padding[3];
    u8 local[16];
    u8 remote[16];
};

struct closed_key {
    u64 socket;
    u64 born_ns;
};

BPF_HASH(watched, u32, u8, MAX_PROCESSES);
BPF_HASH(connections, u64, struct connection, MAX_CONNECTIONS);
BPF_HASH(closed, struct closed_key, struct connection, MAX_CONNECTIONS);
BPF_ARRAY(lost, u64, 1);

INLINE u64 peek(u64 address, u32 size)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, size, (void *)address);
    return value;
}

INLINE void count_lost(void)
{
    int zero = 0;
    u64 *count = lost.lookup(&zero);
    if (count)
        __sync_fetch_and_add(count, 1);
}

/* The current process as the collector's pid namespace numbers it; 0 if it is outside. */
INLINE u32 current_process(void)
{
#ifdef PID_NAMESPACE_INODE
    struct bpf_pidns_info ids = {};
    if (bpf_get_ns_current_pid_tgid(PID_NAMESPACE_DEVICE, PID_NAMESPACE_INODE, &ids, sizeof(ids)))
        return 0;
    return ids.tgid;
#else
    return bpf_get_current_pid_tgid() >> 32;
#endif
}

INLINE void read_addresses(u64 socket, struct connection *c)
{
    c->family = peek(socket + AT_FAMILY, 2);
    c->local_port = peek(socket + AT_LOCAL_PORT, 2);
    c->remote_port = peek(socket + AT_REMOTE_PORT, 2);
    if (c->family == FAMILY_IPV4) {
        bpf_probe_read_kernel(c->local, 4, (void *)(socket + AT_LOCAL_IPV4));
        bpf_probe_read_kernel(c->remote, 4, (void *)(socket + AT_REMOTE_IPV4));
    }
#ifdef AT_REMOTE_IPV6
    else {
        bpf_probe_read_kernel(c->local, 16, (void *)(socket + AT_LOCAL_IPV6));
        bpf_probe_read_kernel(c->remote, 16, (void *)(socket + AT_REMOTE_IPV6));
    }
#endif
}

/* Whether the memory at this address is still the noted connection. */
INLINE int is_same(u64 socket, struct connection *c)
{
    u16 local_port = peek(socket + AT_LOCAL_PORT, 2);
    return peek(socket + AT_FAMILY, 2) == c->family && peek(socket + AT_REMOTE_PORT, 2) == c->remote_port &&
           (local_port == c->local_port || !c->local_port);
}

#ifdef AT_CHRONO_TYPE
/* Like tcpi_busy_time: the intervals that have ended (busy, limited by the window, limited by the send buffer) and the
 * running one. An interval that ends between the reads counts at the next call, not twice. */
INLINE void read_busy(u64 socket, struct connection *c)
{
    u32 start = peek(socket + AT_CHRONO_START, 4);
    u32 type = peek(socket + AT_CHRONO_TYPE, 1) >> CHRONO_TYPE_SHIFT & CHRONO_TYPE_MASK;
    u32 ended[3] = {};
    bpf_probe_read_kernel(ended, sizeof(ended), (void *)(socket + AT_CHRONO_STAT));
    u32 ticks = ended[0] + ended[1] + ended[2];
    if (type)
        ticks += (u32)bpf_jiffies64() - start;
    if ((u32)peek(socket + AT_CHRONO_START, 4) == start && ticks > c->busy_ticks)
        c->busy_ticks = ticks;
}
#endif

/* The counters of a connection never fall, but the kernel changes them while they are read, so each keeps its largest
 * value. The order of the reads matters: the correction for SYN and FIN is never too small. */
INLINE void read_counters(u64 socket, struct connection *c)
{
    u64 acknowledged = peek(socket + AT_BYTES_ACKED, 8);
    u64 sent = peek(socket + AT_BYTES_SENT, 8);
    u64 sent_once = sent - peek(socket + AT_BYTES_RETRANS, 8);
    u64 without_payload = acknowledged > sent_once ? acknowledged - sent_once : 0;
    u64 out = acknowledged - (without_payload > 2 ? 2 : without_payload);
    if (out > c->bytes_out)
        c->bytes_out = out;

    u64 in = peek(socket + AT_BYTES_RECEIVED, 8);
    int fin = !!(peek(socket + AT_FLAGS, 8) & FLAG_FIN_RECEIVED);
    if (in && in - fin > c->bytes_in)
        c->bytes_in = in - fin;

    u32 retransmits = peek(socket + AT_RETRANSMITS, 4);
    if (retransmits > c->retransmits)
        c->retransmits = retransmits;
    c->srtt_us8 = peek(socket + AT_SRTT, 4);

    u32 unsent = (u32)peek(socket + AT_WRITE_SEQ, 4) - (u32)peek(socket + AT_SND_UNA, 4);
    u32 unread = (u32)peek(socket + AT_RCV_NXT, 4) - (u32)peek(socket + AT_COPIED_SEQ, 4);
    c->unsent = (s32)unsent > 0 ? unsent : 0;
    c->unread = (s32)unread > fin ? unread - fin : 0;
#ifdef AT_CHRONO_TYPE
    read_busy(socket, c);
#endif
    if (!c->local_port)
        read_addresses(socket, c);
}

/* Stores the last values. The key is address and time of birth, because the kernel reuses the address. */
INLINE void end(u64 socket, struct connection *c)
{
    if (is_same(socket, c))
        read_counters(socket, c);
    else
        count_lost(); /* the end was missed, and the last values with it */
    struct closed_key key = {.socket = socket, .born_ns = c->born_ns};
    if (closed.update(&key, c))
        count_lost();
    connections.delete(&socket);
}

INLINE void note(u64 socket, u32 pid)
{
    struct connection *before = connections.lookup(&socket);
    if (before) {
        if (is_same(socket, before))
            return;
        end(socket, before);
    }
    struct connection c = {};
    c.born_ns = bpf_ktime_get_ns();
    c.pid = pid;
    c.inode = peek(peek(socket + AT_SOCKET, 8) + AT_INODE, 8);
    c.netns = peek(peek(socket + AT_NET, 8) + AT_NET_INODE, 4);
    read_addresses(socket, &c);
    if (connections.update(&socket, &c))
        count_lost();
}

INLINE u32 current_if_watched(void)
{
    u32 pid = current_process();
    return pid && watched.lookup(&pid) ? pid : 0;
}

/* For a socket of a watched process that may be new, and may not be TCP. */
INLINE void note_if_new(u64 socket, u32 pid)
{
    u16 family = peek(socket + AT_FAMILY, 2);
    if ((family != FAMILY_IPV4 && family != FAMILY_IPV6) || (u16)peek(socket + AT_PROTOCOL, 2) != PROTOCOL_TCP)
        return;
    u8 state = peek(socket + AT_STATE, 1);
    if (state == STATE_CLOSE || state == STATE_LISTEN)
        return;
    note(socket, pid);
    /* It may have ended in between, which no other program notices. */
    struct connection *c = connections.lookup(&socket);
    if (c && (u8)peek(socket + AT_STATE, 1) == STATE_CLOSE)
        end(socket, c);
}

/* In process context, for a socket that was just written or read. */
INLINE int used(u64 socket)
{
    if (connections.lookup(&socket))
        return 0;
    u32 pid = current_if_watched();
    if (pid)
        note_if_new(socket, pid);
    return 0;
}

int on_send(struct bpf_raw_tracepoint_args *ctx)
{
    return used(ctx->args[0]);
}

int on_receive(struct bpf_raw_tracepoint_args *ctx)
{
    return used(ctx->args[0]);
}

/* Arguments: socket, old state, new state. The state field of the socket still has the old one. */
INLINE int state_changes(struct bpf_raw_tracepoint_args *ctx)
{
    u64 socket = ctx->args[0];
    int state = ctx->args[2];
    if (state == STATE_SYN_SENT && (u16)peek(socket + AT_PROTOCOL, 2) == PROTOCOL_TCP) {
        u32 pid = current_if_watched(); /* connect() runs in its process */
        if (pid)
            note(socket, pid);
        return 0;
    }
    if (state != STATE_CLOSE)
        return 0;
    struct connection *c = connections.lookup(&socket);
    if (c)
        end(socket, c);
    return 0;
}

/* The kernel skips a program that already runs on this CPU. If an interrupt or another process ends a connection during
 * that time, one program would miss it. So several equal programs run one after the other; if the first one has done
 * the work, the others do nothing. */
int on_state(struct bpf_raw_tracepoint_args *ctx)
{
    return state_changes(ctx);
}

int on_state_2(struct bpf_raw_tracepoint_args *ctx)
{
    return state_changes(ctx);
}

int on_state_3(struct bpf_raw_tracepoint_args *ctx)
{
    return state_changes(ctx);
}

/* User space runs the next two on demand; they are never attached. */

/* Arguments: a descriptor of the caller, which is a copy of another process's socket, and the pid of that process. */
int adopt(struct bpf_raw_tracepoint_args *ctx)
{
    u64 files = peek(peek(bpf_get_current_task() + AT_FILES, 8) + AT_FILE_TABLE, 8);
    u64 file = peek(peek(files + AT_FILE_LIST, 8) + ctx->args[0] * sizeof(u64), 8);
    u64 socket = peek(peek(file + AT_FILE_SOCKET, 8) + AT_SOCKET_SK, 8);
    if (socket)
        note_if_new(socket, ctx->args[1]);
    return 0;
}

/* Arguments: a key of `connections`, and the pid of the wanted owner (0: any). */
int refresh(struct bpf_raw_tracepoint_args *ctx)
{
    u64 socket = ctx->args[0];
    u32 wanted = ctx->args[1];
    struct connection *c = connections.lookup(&socket);
    if (!c)
        return PASSED_OVER;
    if (wanted && c->pid != wanted)
        return PASSED_OVER;
    struct connection now = *c; /* a copy: the map reuses the memory of a deleted entry at once */
    int goes_on = is_same(socket, &now) && (u8)peek(socket + AT_STATE, 1) != STATE_CLOSE;
    if (goes_on)
        read_counters(socket, &now);
    c = connections.lookup(&socket);
    if (!c || c->born_ns != now.born_ns)
        return PASSED_OVER;
    if (goes_on)
        *c = now;
    else if (bpf_ktime_get_ns() - now.born_ns > YOUNG_NS) {
        end(socket, c); /* the end was missed: it happened in an interrupt, or where the process is hidden */
        return PASSED_OVER;
    }
    return REFRESHED;
}
