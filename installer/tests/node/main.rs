//! A node's directories: the passes that change them, called as functions on a [`test_node::TestNode`], and the
//! commands `gybe install`, `gybe uninstall` and `gybe doctor` as an operator calls them, on a [`HostRoot`].
//!
//! The plugin here is a script that answers VERSION; the tests in `integration/` use the real plugin.

#![cfg(test)]

mod auto_shape;
mod chained;
mod conf_choice;
mod conflists;
mod doctor;
mod doctor_environment;
mod install_command;
mod pods_on_node;
mod programs;
mod support_bundle;
mod take_over;
mod test_node;
mod uninstall_command;
mod watches;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use gybe_installer::host::observe::LOCK;
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::TestDir;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

pub(crate) const LIST: &str = "{\n  \"name\": \"k8s-pod-network\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\",\n      \"mtu\": 1500\n    },\n    {\n      \"type\": \"portmap\"\n    }\n  ]\n}\n";
pub(crate) const SINGLE: &str = "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"dbnet\",\n  \"type\": \"bridge\",\n  \"bridge\": \"cni0\"\n}\n";

/// Names of the other owners' plugins in the node's program directory.
const PRIMARIES: [&str; 7] =
    ["bandwidth", "bridge", "calico", "cilium-cni", "host-local", "loopback", "portmap"];

/// The root directory; dropping it removes it.
pub(crate) struct HostRoot {
    pub(crate) root: TestDir,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

impl HostRoot {
    pub(crate) fn new() -> Self {
        // Not below /tmp, which may be mounted noexec: the programs in it are run.
        let root = TestDir::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "host").with_subdirectories(&[
            "etc/cni/net.d",
            "opt/cni/bin",
            "var/lib/cni/results",
            "run/gybe",
            "image",
        ]);
        let node = Self { root };
        for plugin in PRIMARIES {
            node.write_program(&format!("opt/cni/bin/{plugin}"), "#!/bin/sh\n");
        }
        node.write_program("image/gybe", "#!/bin/sh\necho gybe 1\n");
        node.write_program("image/gybe-cni", &plugin_script("1"));
        node
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let node = Self::new();
        for (name, content) in files {
            node.put_conf(name, content);
        }
        node
    }

    pub(crate) fn write_program(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        // Written by rename: a shell that runs the script reads no half of the next one.
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn conf(&self, name: &str) -> PathBuf {
        self.root.join("etc/cni/net.d").join(name)
    }

    pub(crate) fn put_conf(&self, name: &str, content: &str) {
        let path = self.conf(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes libcni's cached result of a running sandbox that was created with these plugins.
    pub(crate) fn add_sandbox(&self, name: &str, plugins: &[&str]) {
        let plugins: Vec<Value> = plugins.iter().map(|kind| json!({ "type": kind })).collect();
        let config = json!({ "name": "n", "plugins": plugins }).to_string();
        let cached = json!({ "kind": "cniCacheV1", "config": BASE64_STANDARD.encode(config) });
        fs::write(self.root.join("var/lib/cni/results").join(name), cached.to_string()).unwrap();
    }

    pub(crate) fn end_sandbox(&self, name: &str) {
        fs::remove_file(self.root.join("var/lib/cni/results").join(name)).unwrap();
    }

    /// Returns all files under a directory of the node, by their paths in it.
    pub(crate) fn files(&self, directory: &str) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.root.join(directory), "", &mut files);
        files
    }

    pub(crate) fn conf_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files("etc/cni/net.d")
    }

    /// Returns the names in the program directory except the other owners' plugins and the lock file.
    pub(crate) fn programs(&self) -> Vec<String> {
        let names = self.files("opt/cni/bin").into_keys();
        let names: Vec<_> = names.filter(|name| !PRIMARIES.contains(&name.as_str())).collect();
        let is_lock_with_programs = |name: &String| name == LOCK && names.len() > 1;
        names.iter().filter(|name| !is_lock_with_programs(name)).cloned().collect()
    }

    pub(crate) fn gybe(&self, arguments: &str) -> Ran {
        let root = self.root.display();
        let line = arguments.replace("ROOT", &root.to_string());
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
        let Output { status, stdout, stderr } = command.args(line.split(' ')).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }

    pub(crate) fn install(&self, arguments: &str) -> Ran {
        self.gybe(format!("install --root ROOT --from ROOT/image {arguments}").trim_end())
    }

    pub(crate) fn uninstall(&self, arguments: &str) -> Ran {
        self.gybe(format!("uninstall --root ROOT --run-dir ROOT/run/gybe {arguments}").trim_end())
    }

    /// Sets the conf directory's modification time back by more than the grace period of five minutes.
    pub(crate) fn after_grace_period(&self) -> &Self {
        let conf = self.root.join("etc/cni/net.d");
        let entries = fs::read_dir(&conf).unwrap().map(|entry| entry.unwrap().path());
        let long_ago = SystemTime::now() - Duration::from_secs(301);
        for path in entries.filter(|path| path.is_dir()).chain([conf.clone()]) {
            fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        self
    }

    /// Adds a process of a runtime whose program file contains this text; its inotify watches are not readable.
    pub(crate) fn add_runtime(&self, name: &str, program: &str) {
        fs::write(self.add_process(name).join("exe"), program).unwrap();
    }

    /// Adds process 77 with this name, in the host's root directory, as /proc shows it.
    pub(crate) fn add_process(&self, name: &str) -> PathBuf {
        for pid in [1, 77] {
            let namespaces = self.root.join(format!("proc/{pid}/ns"));
            fs::create_dir_all(&namespaces).unwrap();
            for kind in ["pid", "user"] {
                let _ = symlink(format!("{kind}:[1]"), namespaces.join(kind));
            }
        }
        let process = self.root.join("proc/77");
        fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        fs::write(process.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
        process
    }

    pub(crate) fn doctor(&self, arguments: &str) -> Ran {
        self.gybe(format!("doctor --root ROOT --run-dir ROOT/run/gybe {arguments}").trim_end())
    }
}

/// Returns a script that stands for this build of the plugin.
pub(crate) fn plugin_script(build: &str) -> String {
    let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
    format!("#!/bin/sh\n# gybe-cni, build {build}\n# {BUILD_MARK}\necho '{answer}'\n")
}

fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
}
