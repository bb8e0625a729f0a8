/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Requests that come with the last packet of their handshake, before their socket is there. */
#ifndef SITS_EARLY_H
#define SITS_EARLY_H

#include "life.h"
#include "segment.h"

#define AF_INET 2

/* a request that came with the last packet of its handshake, before its socket was there */
struct early_key {
	u32 remote_ip[4]; /* IPv4 as IPv6 knows it */
	u16 remote_port;
	u16 local_port;
};

struct early {
	u64 at_ns;
	u32 slot;
	u32 in_next;
	u32 head_len;
	u32 pad;
	u8 head[HEAD_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct early_key);
	__type(value, struct early);
} early_requests SEC(".maps");

/* a new entry, too large for the stack */
static const struct early no_early;

static __always_inline void as_ipv6(u32 *ip, u32 ip4)
{
	ip[0] = 0;
	ip[1] = 0;
	ip[2] = bpf_htonl(0xffff);
	ip[3] = ip4;
}

/* The last packet of a handshake brought a request: `sk` still listens, the connection's own socket
 * is made from this packet. Keep the request for it. */
static __always_inline void keep_early(struct __sk_buff *skb, struct bpf_sock *sk, u32 slot,
				       struct segment *s)
{
	struct early_key key = { .local_port = sk->src_port };
	u64 len = at_most(s->payload_len, HEAD_BYTES);
	u32 in_next = s->seq + s->payload_len;
	struct early *early;
	u32 ip4 = 0;
	u8 first;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return;
	if (first >> 4 == 4) {
		bpf_skb_load_bytes(skb, 12, &ip4, sizeof(ip4));
		as_ipv6(key.remote_ip, ip4);
		bpf_skb_load_bytes(skb, (first & 15) * 4, &key.remote_port, 2);
	} else {
		bpf_skb_load_bytes(skb, 8, key.remote_ip, sizeof(key.remote_ip));
		bpf_skb_load_bytes(skb, 40, &key.remote_port, 2);
	}
	early = bpf_map_lookup_elem(&early_requests, &key);
	if (early && early->in_next == in_next)
		return; /* sent again: the socket could not be made */
	/* nobody else looks for it: the socket is made from this packet, after this */
	if (!bpf_map_update_elem(&early_requests, &key, &no_early, BPF_ANY))
		early = bpf_map_lookup_elem(&early_requests, &key);
	else
		early = NULL;
	if (!early) {
		note_lost();
		return;
	}
	early->at_ns = bpf_ktime_get_ns();
	early->slot = slot;
	early->in_next = in_next;
	if (!bpf_skb_load_bytes(skb, s->payload_at, early->head, len))
		early->head_len = len;
}

/* The connection's own socket is there: take up the request that came with the handshake. */
static __always_inline void take_up_early(struct sock *sk)
{
	struct early_key key = {};
	struct start_event *e;
	struct connection *c;
	struct counters *n;
	struct early *early;
	u16 family, remote_port;

	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	remote_port = BPF_CORE_READ(sk, __sk_common.skc_dport);
	key.remote_port = remote_port;
	key.local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	if (family == AF_INET)
		as_ipv6(key.remote_ip, BPF_CORE_READ(sk, __sk_common.skc_daddr));
	else
		BPF_CORE_READ_INTO(&key.remote_ip, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32);
	early = bpf_map_lookup_elem(&early_requests, &key);
	if (!early)
		return;
	c = bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		note_no_storage();
		return;
	}
	c->generation = generation_now();
	c->stream.slot = early->slot;
	c->stream.connection = bpf_get_socket_cookie(sk);
	c->stream.local_port = key.local_port;
	c->stream.remote_port = bpf_ntohs(remote_port);
	c->stream.family = family;
	if (family == AF_INET)
		c->stream.remote_ip[0] = key.remote_ip[3];
	else
		__builtin_memcpy(c->stream.remote_ip, key.remote_ip, sizeof(key.remote_ip));
	c->in_next = early->in_next;
	c->in_known = 1;
	begin_stream(c, bpf_skc_to_tcp_sock(sk), early->at_ns);
	n = counters_of(c->stream.slot);
	if (n)
		ADD(n->requests, 1);
	e = reserve_start(c, HEAD_BYTES);
	if (e) {
		__builtin_memcpy(e->head, early->head, HEAD_BYTES);
		e->head_len = early->head_len;
		bpf_ringbuf_submit(e, wake_where_full());
	}
	bpf_map_delete_elem(&early_requests, &key);
}

#endif
