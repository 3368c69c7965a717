/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Small messages between hosts of a rank each, as packets (kernels/net_rings.h). hosts.cu includes this file behind
 * what it shares with it.
 *
 * One block makes the moves in their order, sends first. A launch has one message at most for each pair and direction,
 * so its sends wait only for credits of earlier launches, and these only for launches before them. The trigger of a
 * message may overtake its packets on their way to the host's memory: the proxy thread looks at their flags. A message
 * has in its last 16 bytes how many messages of the peer's were taken since the last one. A rank that only receives
 * tells by a signal.
 */

/* A rank's messages of this launch. */
struct net_mail {
	char *out; /* slots */
	const char *in;
	uint32_t out_flag, in_flag;
	uint32_t from, to; /* offsets of the outgoing slot, here and at the peer */
	uint32_t connection;
	uint32_t returned; /* messages of the peer's that were taken, and not told yet */
};

/* The data that the threads of the block share. */
struct net_mails {
	struct net_mail rank[SHUNT_NET_PACKET_RANKS];
	uint32_t expired;
	uint32_t forsaken; /* 1: the proxy thread was told so */
};

/* The peer has left. Looked at now and then: all data that it sent is visible then. */
GPU_FN bool net_mail_left(const struct net &x, const struct spin &spin, uint32_t connection)
{
	const struct shunt_net_words *words = x.net->words;

	return spin.tries % GPU_SPIN_CHECK == 0 && gpu_ld_relaxed(&words->left) &&
	    gpu_ld_acquire(&words->gone[connection]);
}

/*
 * A wait for this rank goes on. left: it had left before the last look. Why the wait ends, SHUNT_FAULT_*, or 0. By any
 * thread.
 */
GPU_FN uint32_t net_mail_waits(
    const struct net &x, struct net_mails *mails, uint32_t rank, struct spin *spin, bool left)
{
	if (left && gpu_test_and_set32(&mails->forsaken))
		net_forsaken(x, rank);
	spin_account_rank(spin, gpu_here(rank));
	return spin_expired(spin);
}

/* Is there room for one more message? Waits for it. False: the wait has expired. By one thread. */
GPU_FN bool net_mail_room(const struct net &x, struct net_mails *mails, uint32_t rank, struct shunt_net_mail *mail)
{
	const struct shunt_net_pair *pair = &x.net->pair[rank];
	bool left = false;
	struct spin spin;

	if (mail->sent < mail->credits + mail->seen + SHUNT_NET_SLOTS)
		return true;
	spin_init(&spin, x.ctrl);
	for (;;) {
		mail->seen = gpu_ld_credit(&pair->in_tail[SHUNT_NET_PACKET_CHANNEL]);
		if (mail->sent < mail->credits + mail->seen + SHUNT_NET_SLOTS)
			return true;

		uint32_t reason = net_mail_waits(x, mails, rank, &spin, left);

		if (reason) {
			spin_report(x.ctrl, reason, x.net->rank, rank, 0, mail->sent + 1 - SHUNT_NET_SLOTS,
			    mail->credits + mail->seen);
			return false;
		}
		left = left || net_mail_left(x, spin, pair->connection);
	}
}

/* Finds the slots of the launch's messages with a rank, and counts these. By one thread. */
GPU_FN void net_mail_open(const struct net &x, struct net_mails *mails, uint32_t rank, bool sends, bool receives)
{
	const struct shunt_net_pair *pair = &x.net->pair[rank];
	struct shunt_net_mail *mail = &x.net->mail[rank];
	uint64_t packets = SHUNT_NET_PACKETS_AT(x.slot_bytes), sent = mail->sent, received = mail->received;
	uint32_t slot = (uint32_t)packets + ((uint32_t)sent & (SHUNT_NET_SLOTS - 1)) * SHUNT_NET_PACKET_SLOT;
	struct net_mail *m = &mails->rank[rank];

	m->out = pair->out + slot;
	m->in = pair->in + packets + ((uint32_t)received & (SHUNT_NET_SLOTS - 1)) * SHUNT_NET_PACKET_SLOT;
	m->out_flag = (uint32_t)sent + 1;
	m->in_flag = (uint32_t)received + 1;
	m->from = (uint32_t)pair->out_at + slot;
	m->to = (uint32_t)pair->to_at + slot;
	m->connection = pair->connection;
	m->returned = (uint32_t)(received - mail->told);
	if (sends) {
		if (!net_mail_room(x, mails, rank, mail))
			gpu_test_and_set32(&mails->expired);
		mail->sent = sent + 1;
		mail->told = received;
	} else if (m->returned >= SHUNT_NET_CREDIT_BATCH) {
		net_push(x.net, x.ctrl, /* about loads of earlier launches */
		    { SHUNT_NET_TRIGGER(m->connection, SHUNT_NET_PACKET_CHANNEL, SHUNT_NET_TRIGGER_SIGNAL), m->returned,
		        0, 0 });
		mail->told = received;
	}
	if (receives)
		mail->received = received + 1;
}

GPU_FN void net_mail_post(const struct net &x, const struct net_mail *m, uint64_t bytes)
{
	net_push(x.net, x.ctrl,
	    { SHUNT_NET_TRIGGER(m->connection, m->out_flag & 0xffff,
	          SHUNT_NET_TRIGGER_PUT | SHUNT_NET_TRIGGER_PACKETS | SHUNT_NET_TRIGGER_FLAGGED),
	        SHUNT_NET_PACKET_BYTES(bytes), m->from, m->to });
}

GPU_FN uint64_t net_packet(uint64_t data, uint32_t flag) { return (data & 0xffffffffu) | (uint64_t)flag << 32; }

/* 8 bytes of data, at a place for 16. */
GPU_FN void net_packet_store(char *to, uint64_t data, uint32_t flag)
{
	gpu_ll16_st(to, { net_packet(data, flag), net_packet(data >> 32, flag) });
}

/* Waits for 16 bytes, or for 8 (`half`), that come from this rank in packets. False: the wait has expired. */
GPU_FN bool net_packets_load(
    const struct net &x, struct net_mails *mails, uint32_t rank, uint32_t at, bool half, struct gpu_v16 *v)
{
	const struct net_mail *m = &mails->rank[rank];
	const char *from = m->in + 2 * at;
	uint32_t flag = m->in_flag;
	bool left = false;
	struct spin spin;

	spin_init(&spin, x.ctrl);
	for (;;) {
		struct gpu_v16 a = gpu_ll16_ld(from), b = half ? a : gpu_ll16_ld(from + 16);

		if (gpu_ll32_ready(a, b, flag)) {
			v->lo = (a.lo & 0xffffffffu) | a.hi << 32;
			v->hi = (b.lo & 0xffffffffu) | b.hi << 32;
			return true;
		}

		uint32_t reason = net_mail_waits(x, mails, rank, &spin, left);

		if (reason) {
			spin_report(x.ctrl, reason, x.net->rank, rank, 0, flag, a.lo >> 32);
			return false;
		}
		left = left || net_mail_left(x, spin, m->connection);
	}
}

/* The data of a move at one place: net_reduced() asks for them. */
struct net_from_packets {
	const struct net &x;
	struct net_mails *mails;
	const struct shunt_net_move *move;
	uint32_t at;

	template <typename T> GPU_METHOD bool own(struct net_packs<1> &p) const
	{
		p.v[0] = load_user<T>(move->from, at, 16, move->bytes, !((uintptr_t)move->from & 15));
		return true;
	}
	template <typename T> GPU_METHOD bool source(uint32_t i, struct net_packs<1> &p) const
	{
		return net_packets_load(x, mails, x.end[move->ends + i] & 255, at, false, &p.v[0]);
	}
};

/* 16 bytes of a move. False: a wait has expired. */
template <typename T, typename Op>
GPU_FN bool net_packets_move(const struct net &x, struct net_mails *mails, const struct shunt_net_move *m, uint32_t at)
{
	struct net_packs<1> p;

	if (!net_reduced<T, Op>(x, m, net_from_packets{ x, mails, m, at }, p))
		return false;
	if (m->to)
		store_user<T>(m->to, at, 16, m->bytes, !((uintptr_t)m->to & 15), p.v[0]);
	GPU_ROLL for (uint32_t o = 0; o < m->noutputs; o++) {
		const struct net_mail *mail = &mails->rank[x.end[m->ends + m->nsources + o] & 255];

		net_packet_store(mail->out + 2 * at, p.v[0].lo, mail->out_flag);
		net_packet_store(mail->out + 2 * at + 16, p.v[0].hi, mail->out_flag);
	}
	return true;
}

/* The credits of the move's messages, behind their data. False: a wait has expired. */
GPU_FN bool net_packets_credits(
    const struct net &x, struct net_mails *mails, const struct shunt_net_move *m, uint32_t at)
{
	GPU_ROLL for (uint32_t i = 0; i < (uint32_t)m->nsources + m->noutputs; i++) {
		uint32_t rank = x.end[m->ends + i] & 255;
		const struct net_mail *mail = &mails->rank[rank];
		struct gpu_v16 v;

		if (i >= m->nsources)
			net_packet_store(mail->out + 2 * at, mail->returned, mail->out_flag);
		else if (net_packets_load(x, mails, rank, at, true, &v))
			x.net->mail[rank].credits += v.lo;
		else
			return false;
	}
	return true;
}

/* A launch by packets. By its only block. */
template <typename T, typename Op> GPU_FN void net_packets_run(const struct net &x, const struct shunt_kargs_net_few &a)
{
	GPU_SHARED(struct net_mails, mails, 1);
	uint32_t tid = gpu_tid();
	bool sends = tid < x.total && a.sends >> tid & 1, receives = tid < x.total && a.receives >> tid & 1;

	if (tid == 0)
		mails->expired = mails->forsaken = 0;
	gpu_sync(); /* the copy of the program, too */
	if (sends || receives)
		net_mail_open(x, mails, tid, sends, receives);
	gpu_sync();
	if (mails->expired)
		return;
	if (sends)
		net_mail_post(x, &mails->rank[tid], x.move[0].bytes);
	GPU_ROLL for (uint32_t role = 0; role < x.roles; role++) GPU_ROLL
		for (uint32_t i = 0; i < x.role[role].count; i++) {
			const struct shunt_net_move *m = &x.move[x.role[role].first + i];
			uint32_t end = SHUNT_NET_PACKET_PACKS(m->bytes) * 16;

			GPU_ROLL for (uint32_t at = tid * 16; at <= end; at += gpu_ntid() * 16)
				if (!(at < end ? net_packets_move<T, Op>(x, mails, m, at) :
				                 net_packets_credits(x, mails, m, at)))
					return;
		}
}
