//! containerd's configuration as text, for each generation; not the CNI configuration.

use crate::Generation;

/// The image the sandboxes are made of. It exists nowhere but in the stage.
pub const PAUSE_IMAGE: &str = "localhost/gybe-pause:1";
/// Where containerd keeps what survives its restart.
pub const ROOT: &str = "/run/gybe/root";
/// Where containerd listens.
pub const SOCKET: &str = "/run/gybe/containerd.sock";
/// Where containerd looks for the CNI configuration.
pub const CONF_DIR: &str = "/run/gybe/net.d";
/// Where containerd looks for CNI plugins.
pub const BIN_DIR: &str = "/run/gybe/bin";

/// The whole file.
///
/// `restrict_oom_score_adj` is for machines without CAP_SYS_RESOURCE, where runc may not lower
/// the score of the sandbox's process; AppArmor is left out so that no profile must be loaded.
pub fn text(generation: Generation) -> String {
    let version = match generation {
        Generation::V1_6 | Generation::V1_7 => 2,
        Generation::V2 => 3,
    };
    let cri = match generation {
        Generation::V1_6 | Generation::V1_7 => cri_of_1(),
        Generation::V2 => cri_of_2(),
    };
    format!(
        "version = {version}\n\
         root = '{ROOT}'\n\
         state = '/run/gybe/state'\n\
         disabled_plugins = ['io.containerd.internal.v1.opt']\n\
         [grpc]\n\
         address = '{SOCKET}'\n\
         [ttrpc]\n\
         address = '{SOCKET}.ttrpc'\n\
         {cri}"
    )
}

fn cri_of_1() -> String {
    format!(
        "[plugins.'io.containerd.grpc.v1.cri']\n\
         sandbox_image = '{PAUSE_IMAGE}'\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         [plugins.'io.containerd.grpc.v1.cri'.cni]\n\
         bin_dir = '{BIN_DIR}'\n\
         conf_dir = '{CONF_DIR}'\n"
    )
}

fn cri_of_2() -> String {
    format!(
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n\
         sandbox = '{PAUSE_IMAGE}'\n\
         [plugins.'io.containerd.cri.v1.runtime']\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = ['{BIN_DIR}']\n\
         conf_dir = '{CONF_DIR}'\n"
    )
}
