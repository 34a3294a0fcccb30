//! A simulated node: its root directory and an image's programs. Dropping [`Node`] removes them.

use gybe_installer::host::observe::LOCK;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

pub(crate) const LIST: &str = "{\n  \"name\": \"k8s-pod-network\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\",\n      \"mtu\": 1500\n    },\n    {\n      \"type\": \"portmap\"\n    }\n  ]\n}\n";
pub(crate) const SINGLE: &str = "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"dbnet\",\n  \"type\": \"bridge\",\n  \"bridge\": \"cni0\"\n}\n";

/// Names of the other owners' plugins in the node's program directory.
const PRIMARIES: [&str; 3] = ["bridge", "calico", "cilium-cni"];

pub(crate) struct Node {
    pub(crate) root: PathBuf,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let root =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("operator-{}-{n}", std::process::id()));
        for folder in ["etc/cni/net.d", "opt/cni/bin", "var/lib/cni/results", "run/gybe", "image"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let node = Self { root };
        for plugin in PRIMARIES {
            node.program(&format!("opt/cni/bin/{plugin}"), "#!/bin/sh\n");
        }
        node.program("image/gybe", "#!/bin/sh\necho gybe 1\n");
        node.program("image/gybe-cni", &plugin("1"));
        node
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let node = Self::new();
        for (name, content) in files {
            node.put(name, content);
        }
        node
    }

    pub(crate) fn program(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        // Written by rename: a child that another test has forked may hold the file open for writing (ETXTBSY).
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn conf(&self, name: &str) -> PathBuf {
        self.root.join("etc/cni/net.d").join(name)
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.conf(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes libcni's cached result of a running sandbox that was created with these plugins.
    pub(crate) fn sandbox(&self, name: &str, plugins: &[&str]) {
        let plugins: Vec<Value> = plugins.iter().map(|kind| serde_json::json!({ "type": kind })).collect();
        let config = serde_json::json!({ "name": "n", "plugins": plugins }).to_string();
        let cached = serde_json::json!({ "kind": "cniCacheV1", "config": base64(config.as_bytes()) });
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

    pub(crate) fn networks(&self) -> BTreeMap<String, Vec<u8>> {
        self.files("etc/cni/net.d")
    }

    /// Returns the names in the program directory except the other owners' plugins and the lock file.
    pub(crate) fn programs(&self) -> Vec<String> {
        let names = self.files("opt/cni/bin").into_keys();
        let names: Vec<_> = names.filter(|name| !PRIMARIES.contains(&name.as_str())).collect();
        let is_lock_of_ours = |name: &String| name == LOCK && names.len() > 1;
        names.iter().filter(|name| !is_lock_of_ours(name)).cloned().collect()
    }

    pub(crate) fn gybe(&self, words: &str) -> Said {
        let root = self.root.display();
        let line = words.replace("ROOT", &root.to_string());
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
        let Output { status, stdout, stderr } = command.args(line.split(' ')).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }

    pub(crate) fn install(&self, words: &str) -> Said {
        self.gybe(format!("install --root ROOT --from ROOT/image {words}").trim_end())
    }

    pub(crate) fn uninstall(&self, words: &str) -> Said {
        self.gybe(format!("uninstall --root ROOT --run-dir ROOT/run/gybe {words}").trim_end())
    }

    /// Sets the conf directory's modification time back by more than the grace period of five minutes.
    pub(crate) fn minutes_later(&self) -> &Self {
        let conf = self.root.join("etc/cni/net.d");
        let networks = fs::read_dir(&conf).unwrap().map(|entry| entry.unwrap().path());
        let long_ago = SystemTime::now() - Duration::from_secs(301);
        for path in networks.filter(|path| path.is_dir()).chain([conf.clone()]) {
            fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        self
    }

    /// Adds a process of a runtime whose program file contains this text; its inotify watches are not readable.
    pub(crate) fn runs(&self, name: &str, program: &str) {
        fs::write(self.process(name).join("exe"), program).unwrap();
    }

    /// Adds process 77 with this name, in the host's root directory, as /proc shows it.
    pub(crate) fn process(&self, name: &str) -> PathBuf {
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

    pub(crate) fn doctor(&self, words: &str) -> Said {
        self.gybe(format!("doctor --root ROOT --run-dir ROOT/run/gybe {words}").trim_end())
    }
}

/// Returns a script that stands for this build of the plugin.
pub(crate) fn plugin(build: &str) -> String {
    let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
    format!("#!/bin/sh\n# gybe-cni, build {build}\necho '{answer}'\n")
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for n in 0..4 {
            let six = (bits >> (18 - 6 * n) & 63) as usize;
            text.push(if n > chunk.len() { '=' } else { char::from(LETTERS[six]) });
        }
    }
    text
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

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
