/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* A TCP packet as a program on a cgroup sees it. */
#ifndef SITS_SEGMENT_H
#define SITS_SEGMENT_H

#include "kernel.h"

#define TCP 6
#define FIN 0x01
#define SYN 0x02
#define RST 0x04

/* `n`, which is not 0, or `most`, a power of two: in a form whose bounds every kernel's verifier can
 * follow. 64 bits wide, for it loses the bounds of a narrower copy. */
static __always_inline u64 at_most(u64 n, u64 most)
{
	if (n > most)
		n = most;
	barrier_var(n);
	return ((n - 1) & (most - 1)) + 1;
}

/* The headers of a TCP packet as cgroup_skb shows it: from the IP header on. */
struct segment {
	u32 payload_at;
	u32 payload_len;
	u32 seq;
	u16 window;
	u8 flags;
};

static __always_inline bool parse_segment(struct __sk_buff *skb, struct segment *s)
{
	u8 tcp[16], first, protocol;
	u32 ip_len;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return false;
	if (first >> 4 == 4) {
		ip_len = (first & 15) * 4;
		if (bpf_skb_load_bytes(skb, 9, &protocol, 1))
			return false;
	} else {
		/* one extension header occurs on a server's TCP: a packet of more than 64 KiB (BIG TCP,
		 * kernels from 5.19) says its length in a hop-by-hop option of 8 bytes */
		ip_len = 40;
		if (bpf_skb_load_bytes(skb, 6, &protocol, 1))
			return false;
		if (!protocol) {
			if (bpf_skb_load_bytes(skb, 40, &protocol, 1))
				return false;
			ip_len = 48;
		}
	}
	if (protocol != TCP || bpf_skb_load_bytes(skb, ip_len, tcp, sizeof(tcp)))
		return false;
	s->seq = (u32)tcp[4] << 24 | (u32)tcp[5] << 16 | (u32)tcp[6] << 8 | tcp[7];
	s->flags = tcp[13];
	s->window = (u16)tcp[14] << 8 | tcp[15];
	s->payload_at = ip_len + (tcp[12] >> 4) * 4;
	s->payload_len = skb->len > s->payload_at ? skb->len - s->payload_at : 0;
	return true;
}

/* The first bytes of a packet's payload, as many as there are of eight. */
static __always_inline u64 first_bytes(struct __sk_buff *skb, struct segment *s)
{
	u64 bytes = 0, n = at_most(s->payload_len, sizeof(bytes));

	return bpf_skb_load_bytes(skb, s->payload_at, &bytes, n) ? 0 : bytes;
}

#endif
