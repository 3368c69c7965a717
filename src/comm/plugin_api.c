/* SPDX-License-Identifier: MIT */
/* The functions of shunt/plugin.h. */
#include "algos/plugins.h"
#include <errno.h>
#include <stdio.h>
#include "algos/select/forced.h"
#include "device/gpu_ops.h"
#include "shunt/plugin.h"

/*
 * The image fits the device that the process uses. Where it uses none yet, the first communicator tells: a device must
 * not be begun with only to look.
 */
static int check_image(const struct shunt_plugin *p, char *why, size_t bytes)
{
	const struct shunt_gpu_image image = {
		.image = p->image, .bytes = p->image_bytes, .symbol = p->launch.symbol, .shared = p->launch.shared_bytes
	};
	struct shunt_gpu_function function;
	char reason[256] = "";
	int device, err;

	if (!p->image || shunt_gpu_chosen() != &shunt_gpu_cuda_ops || !shunt_gpu_cuda_ops.in_use() ||
	    shunt_gpu_cuda_ops.device_get(&device))
		return 0;
	err = shunt_gpu_cuda_ops.image_load(device, &image, &function, reason, sizeof(reason));
	if (err && why && bytes)
		snprintf(why, bytes, "plug-in %s: %s", p->name, reason);
	return err;
}

int shunt_plugin_register(const struct shunt_plugin *plugin, char *why, size_t bytes)
{
	int err = shunt_plugin_add(plugin, 0, why, bytes);
	struct shunt_plugin_set *set = err ? NULL : shunt_plugin_set_get();
	const struct shunt_plugin_use *use = err ? NULL : shunt_plugin_set_find(set, plugin->name);

	if (err)
		return err;
	/* Of the copy, which ends with a NUL as CUDA wants it of PTX. */
	err = use ? check_image(&use->entry->plugin, why, bytes) : 0;
	shunt_plugin_set_free(set);
	if (err)
		shunt_plugin_forget(plugin->name);
	else
		shunt_forced_reread();
	return err;
}

int shunt_plugin_load(const char *path, char *why, size_t bytes)
{
	int err;

	if (!path) {
		if (why && bytes)
			snprintf(why, bytes, "path is NULL");
		return -EINVAL;
	}
	err = shunt_plugin_load_file(path, why, bytes);
	shunt_forced_reread();
	return err;
}

int shunt_plugin_end(void *arg)
{
	return shunt_callback_end(NULL, arg);
}

int shunt_plugin_unregister(const char *name)
{
	int err = name ? shunt_plugin_remove(name) : -EINVAL;

	shunt_forced_reread();
	return err;
}
