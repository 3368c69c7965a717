/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "fake.h"

/* One reference for each list and each context. */
static void device_put(struct fake_device *d)
{
	if (atomic_fetch_sub(&d->users, 1) == 1)
		free(d);
}

/* What the network knows of a device's ports. */
static int publish(const struct fake_spec *s, uint32_t ports[FAKE_PORTS])
{
	for (uint32_t n = 1; n <= s->ports; n++) {
		int i = fabric_port(fake_config()->host, s->name, n);
		struct fabric_port *p;

		if (i < 0)
			return i;
		p = &fabric_get()->ports[i];
		atomic_store(&p->link_layer, s->link_layer);
		atomic_store(&p->active_mtu, s->mtu);
		for (uint32_t k = 0; k < FABRIC_PKEYS; k++)
			atomic_store(&p->pkeys[k], s->pkeys[k]);
		for (uint32_t k = 0; k < FABRIC_GIDS; k++) {
			union ibv_gid gid = fake_spec_gid(s, n, k);
			uint64_t high, low;

			memcpy(&high, gid.raw, 8);
			memcpy(&low, gid.raw + 8, 8);
			atomic_store(&p->gids[k].high, high);
			atomic_store(&p->gids[k].low, low);
			atomic_store(&p->gids[k].type, s->gids[k].type);
		}
		ports[n - 1] = (uint32_t)i;
	}
	return 0;
}

struct ibv_device **ibv_get_device_list(int *n_p)
{
	struct fake_spec specs[FAKE_DEVICES];
	int n = fabric_get() ? fake_specs(specs) : -EIO;
	struct ibv_device **list = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(struct ibv_device *));

	if (!list)
		errno = n < 0 ? -n : ENOMEM;
	for (int i = 0; list && i < n; i++) {
		struct fake_device *d = calloc(1, sizeof(*d));
		struct ibv_device *v = &d->verbs;

		if (!d)
			abort(); /* a test without memory */
		d->spec = specs[i];
		atomic_store(&d->users, 1);
		v->node_type = IBV_NODE_CA;
		v->transport_type = IBV_TRANSPORT_IB;
		snprintf(v->name, sizeof(v->name), "%.63s", specs[i].name);
		snprintf(v->dev_name, sizeof(v->dev_name), "uverbs%d", i);
		snprintf(v->dev_path, sizeof(v->dev_path), "%.180s/class/infiniband_verbs/uverbs%d",
		    ibv_get_sysfs_path(), i);
		snprintf(v->ibdev_path, sizeof(v->ibdev_path), "%.170s/class/infiniband/%.60s", ibv_get_sysfs_path(),
		    v->name);
		fake_sysfs_write(&specs[i]);
		list[i] = v;
	}
	if (n_p)
		*n_p = list ? n : 0;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	for (int i = 0; list[i]; i++)
		device_put((struct fake_device *)list[i]);
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	const struct fake_spec *s = &((struct fake_device *)device)->spec;
	union ibv_gid gid = fake_spec_gid(s, 1, s->gids[0].type ? 0 : 1);
	__be64 guid;

	memcpy(&guid, gid.raw + 8, 8);
	return guid;
}

int ibv_get_device_index(struct ibv_device *device)
{
	return atoi(device->dev_name + strlen("uverbs"));
}

static int query_device_ex(
    struct ibv_context *c, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t bytes)
{
	struct ibv_device_attr_ex all = { .phys_port_cnt_ex = fake_nic_of(c)->device->spec.ports };
	int err = ibv_query_device(c, &all.orig_attr);

	memset(attr, 0, bytes);
	memcpy(attr, &all, bytes < sizeof(all) ? bytes : sizeof(all));
	return err;
}

static struct fake_nic *nic_new(struct fake_device *d)
{
	struct fake_nic *nic = calloc(1, sizeof(*nic));
	struct verbs_context *v = &nic->verbs;
	int entry, fds[2];

	if (!nic)
		return NULL;
	entry = fabric_nic_take();
	if (entry < 0 || publish(&d->spec, nic->ports) || pipe2(fds, O_CLOEXEC)) {
		if (entry >= 0)
			fabric_nic_give((uint32_t)entry);
		free(nic);
		return NULL;
	}
	nic->nic = (uint32_t)entry;
	nic->device = d;
	nic->event_fd = fds[1];
	nic->parked_end = &nic->parked;
	pthread_mutex_init(&nic->lock, NULL);
	fcntl(nic->event_fd, F_SETFL, O_NONBLOCK);
	for (uint32_t i = 0; i < d->spec.ports; i++) {
		struct fabric_port *p = fake_port(nic, i + 1);

		nic->downs[i] = atomic_load(&p->downs);
		nic->gid_changes[i] = atomic_load(&p->gid_changes);
		nic->kills[i] = atomic_load(&p->kills);
		nic->fatals[i] = atomic_load(&p->fatals);
		nic->up[i] = fabric_up(p, fabric_now());
	}
	v->sz = sizeof(*v);
	v->query_port = fake_query_port;
	v->query_device_ex = query_device_ex;
	v->context.device = &d->verbs;
	v->context.ops.poll_cq = fake_poll_cq;
	v->context.ops.req_notify_cq = fake_req_notify_cq;
	v->context.ops.post_send = fake_post_send;
	v->context.ops.post_recv = fake_post_recv;
	v->context.cmd_fd = -1;
	v->context.async_fd = fds[0];
	v->context.num_comp_vectors = 4;
	pthread_mutex_init(&v->context.mutex, NULL);
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	return nic;
}

static void nic_free(struct fake_nic *nic)
{
	close(nic->event_fd);
	close(nic->verbs.context.async_fd);
	fabric_nic_give(nic->nic);
	pthread_mutex_destroy(&nic->verbs.context.mutex);
	pthread_mutex_destroy(&nic->lock);
	free(nic);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct fake_device *d = (struct fake_device *)device;
	struct fake_nic *nic = nic_new(d);
	int err;

	if (!nic) {
		errno = ENOMEM;
		return NULL;
	}
	err = fake_nic_start(nic);
	if (err) {
		nic_free(nic);
		errno = -err;
		return NULL;
	}
	atomic_fetch_add(&d->users, 1);
	return &nic->verbs.context;
}

int ibv_close_device(struct ibv_context *c)
{
	struct fake_nic *nic = fake_nic_of(c);
	struct fake_device *d = nic->device;

	if (nic->qps) {
		fprintf(stderr, "fake_ibverbs: ibv_close_device(%s) while it has QPs\n", d->spec.name);
		return EBUSY;
	}
	fake_nic_stop(nic);
	nic_free(nic);
	device_put(d);
	return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	static const enum ibv_atomic_cap caps[] = { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };
	const struct fake_spec *s = &fake_nic_of(c)->device->spec;

	memset(a, 0, sizeof(*a));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "1.0.0");
	a->node_guid = a->sys_image_guid = ibv_get_device_guid(c->device);
	a->max_mr_size = UINT64_MAX;
	a->page_size_cap = 0xfffffffffffff000;
	a->vendor_id = 0x02c9;
	a->vendor_part_id = 0xfa4e; /* no real device: programs take their defaults */
	a->hw_ver = 1;
	a->max_qp = FABRIC_QPS;
	a->max_qp_wr = (int)s->depth;
	a->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
	a->max_sge = (int)s->sges;
	a->max_sge_rd = (int)s->sges;
	a->max_cq = 1 << 20;
	a->max_cqe = (int)s->cqes;
	a->max_mr = FAKE_MRS;
	a->max_pd = 1 << 20;
	a->max_qp_rd_atom = (int)s->reads;
	a->max_res_rd_atom = (int)s->reads * FABRIC_QPS;
	a->max_qp_init_rd_atom = (int)s->reads;
	a->atomic_cap = caps[s->atomics];
	a->max_ah = 1 << 20;
	a->max_pkeys = FABRIC_PKEYS;
	a->local_ca_ack_delay = 16;
	a->phys_port_cnt = (uint8_t)s->ports;
	return 0;
}

int fake_query_port(struct ibv_context *c, uint8_t n, struct ibv_port_attr *attr, size_t bytes)
{
	struct fake_nic *nic = fake_nic_of(c);
	const struct fake_spec *s = &nic->device->spec;
	struct ibv_port_attr a = { 0 };
	int mtu = IBV_MTU_256;

	if (n < 1 || n > s->ports)
		return EINVAL;
	while (128u << mtu < s->mtu)
		mtu++;
	a.state = (enum ibv_port_state)s->state;
	if (!fabric_up(fake_port(nic, n), fabric_now()))
		a.state = IBV_PORT_DOWN;
	a.max_mtu = IBV_MTU_4096;
	a.active_mtu = (enum ibv_mtu)mtu;
	a.gid_tbl_len = FABRIC_GIDS;
	a.max_msg_sz = 0x40000000;
	for (int i = 0; i < FABRIC_PKEYS; i++)
		a.pkey_tbl_len = (uint16_t)(a.pkey_tbl_len + (s->pkeys[i] != 0));
	a.lid = s->link_layer == IBV_LINK_LAYER_ETHERNET ? 0 : (uint16_t)atomic_load(&fake_port(nic, n)->lid);
	a.sm_lid = s->link_layer == IBV_LINK_LAYER_ETHERNET ? 0 : 1;
	a.max_vl_num = 1;
	a.active_width = 2; /* 4 lanes */
	a.active_speed = 64;
	a.phys_state = a.state == IBV_PORT_DOWN ? 3 : 5;
	a.link_layer = (uint8_t)s->link_layer;
	memset(attr, 0, bytes);
	memcpy(attr, &a, bytes < sizeof(a) ? bytes : sizeof(a));
	return 0;
}

/* The symbol fills the structure as it was before `flags`; programs of today call fake_query_port() by the context. */
int ibv_query_port(struct ibv_context *c, uint8_t n, struct _compat_ibv_port_attr *attr)
{
	return fake_query_port(c, n, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, flags));
}

int ibv_query_port_speed(struct ibv_context *c, uint32_t n, uint64_t *speed_p)
{
	const struct fake_spec *s = &fake_nic_of(c)->device->spec;

	if (fake_hidden("port_speed"))
		return EOPNOTSUPP;
	if (n < 1 || n > s->ports)
		return EINVAL;
	*speed_p = s->speed;
	return 0;
}

struct ibv_gid_entry fake_gid(const struct fake_nic *nic, uint32_t n, uint32_t index)
{
	struct fabric_gid *g = &fake_port(nic, n)->gids[index];
	uint64_t high = atomic_load(&g->high), low = atomic_load(&g->low);
	uint32_t type = atomic_load(&g->type);
	struct ibv_gid_entry e = { .gid_index = index, .port_num = n };

	memcpy(e.gid.raw, &high, 8);
	memcpy(e.gid.raw + 8, &low, 8);
	e.gid_type = type == GID_ROCE_V2 ? IBV_GID_TYPE_ROCE_V2 :
	    type == GID_ROCE_V1          ? IBV_GID_TYPE_ROCE_V1 :
	                                   IBV_GID_TYPE_IB;
	e.ndev_ifindex = 0;
	return e;
}

int ibv_query_gid(struct ibv_context *c, uint8_t n, int index, union ibv_gid *gid)
{
	struct fake_nic *nic = fake_nic_of(c);

	if (n < 1 || n > nic->device->spec.ports || index < 0 || index >= FABRIC_GIDS) {
		errno = EINVAL;
		return -1;
	}
	*gid = fake_gid(nic, n, (uint32_t)index).gid;
	return 0;
}

int _ibv_query_gid_ex(
    struct ibv_context *c, uint32_t n, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t bytes)
{
	struct fake_nic *nic = fake_nic_of(c);
	struct ibv_gid_entry e;

	if (flags)
		return EOPNOTSUPP;
	if (n < 1 || n > nic->device->spec.ports || index >= FABRIC_GIDS)
		return EINVAL;
	if (atomic_load(&fake_port(nic, n)->gids[index].type) == GID_NONE)
		return ENODATA;
	e = fake_gid(nic, n, index);
	memcpy(entry, &e, bytes < sizeof(e) ? bytes : sizeof(e));
	return 0;
}

ssize_t _ibv_query_gid_table(
    struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags, size_t bytes)
{
	size_t n = 0;

	if (flags)
		return -EOPNOTSUPP;
	if (bytes < sizeof(*entries))
		return -EINVAL;
	for (uint32_t port = 1; port <= fake_nic_of(c)->device->spec.ports; port++)
		for (uint32_t i = 0; i < FABRIC_GIDS; i++) {
			struct ibv_gid_entry e;

			if (_ibv_query_gid_ex(c, port, i, &e, 0, sizeof(e)))
				continue;
			if (n == max)
				return -EINVAL;
			memcpy((char *)entries + n * bytes, &e, sizeof(e));
			n++;
		}
	return (ssize_t)n;
}

int ibv_query_pkey(struct ibv_context *c, uint8_t n, int index, __be16 *pkey)
{
	const struct fake_spec *s = &fake_nic_of(c)->device->spec;

	if (n < 1 || n > s->ports || index < 0 || index >= FABRIC_PKEYS) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16((uint16_t)s->pkeys[index]);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *c, uint8_t n, __be16 pkey)
{
	__be16 other;

	for (int i = 0; i < FABRIC_PKEYS; i++)
		if (!ibv_query_pkey(c, n, i, &other) && other && other == pkey)
			return i;
	errno = EINVAL;
	return -1;
}
