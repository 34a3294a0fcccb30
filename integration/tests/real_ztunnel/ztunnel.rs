//! The real ztunnel as a process, in a network namespace of its own, and the file that is its mesh.

use crate::ambient_node::socket;
use gybe_demo::testnet::namespace::Namespace;
use gybe_test_support::{TestDir, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The pods `cart-1` to `cart-3` of the namespace `shop` and `cart-4` of `plain`, which take HBONE, and a service for `cart-2`. STRICT mutual TLS of
/// `cart-2` is the policy into which istiod translates it.
const MESH: &str = r#"
workloads:
- { uid: one, name: cart-1, namespace: shop, serviceAccount: default, protocol: HBONE, node: node-1,
    workloadIps: ["10.244.0.3", "fd00:10::3"], services: {} }
- { uid: two, name: cart-2, namespace: shop, serviceAccount: default, protocol: HBONE, node: node-1,
    workloadIps: ["10.244.0.4", "fd00:10::4"], services: { "shop/cart.shop.svc.cluster.local": { 80: 8080 } },
    authorizationPolicies: ["istio-system/istio_converted_static_strict"] }
- { uid: three, name: cart-3, namespace: shop, serviceAccount: default, protocol: HBONE, node: node-1,
    workloadIps: ["10.244.0.5", "fd00:10::5"], services: {} }
- { uid: four, name: cart-4, namespace: plain, serviceAccount: default, protocol: HBONE, node: node-1,
    workloadIps: ["10.244.0.6", "fd00:10::6"], services: {} }
services:
- { name: cart, namespace: shop, hostname: cart.shop.svc.cluster.local, vips: ["/10.96.0.10", "/fd00:96::10"],
    ports: { 80: 8080 } }
policies:
- name: istio_converted_static_strict
  namespace: istio-system
  scope: WorkloadSelector
  action: Deny
  dryRun: false
  rules: [[[{ notPrincipals: [!Presence []] }]]]
"#;

pub(crate) struct Ztunnel {
    process: Child,
    own: Namespace,
    log: PathBuf,
}

impl Ztunnel {
    /// Starts it as a client of the agent of the node with this root directory, which need not run yet. It reads
    /// /etc/resolv.conf of the calling thread's mount namespace, and ends with the thread.
    pub(crate) fn start(root: &TestDir) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let program = std::env::var_os("GYBE_ZTUNNEL").filter(|path| PathBuf::from(path).is_file());
        let program = program.expect("no ztunnel; run: make -C integration ambient ZTUNNEL=PROGRAM");
        let own = Namespace::new().unwrap();
        let log = root.join(format!("ztunnel-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let output = File::create(&log).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", own.path().display()));
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program).env_clear();
        command.env("INPOD_UDS", socket(root)).env("LOCAL_XDS_PATH", root.write("mesh.yaml", MESH));
        command.envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("FAKE_CA", "true"),
            ("XDS_ADDRESS", ""),
            ("NODE_NAME", "node-1"),
            ("CLUSTER_ID", "Kubernetes"),
            ("ISTIO_META_DNS_CAPTURE", "true"),
            ("TERMINATION_GRACE_PERIOD_SECONDS", "15"),
            ("LOG_FORMAT", "json"),
        ]);
        command.current_dir(root.path()).stdin(Stdio::null());
        command.stderr(output.try_clone().unwrap()).stdout(output);
        Self { process: command.spawn().unwrap(), own, log }
    }

    /// Reports whether its readiness probe succeeds.
    pub(crate) fn is_ready(&self) -> bool {
        let request = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect("127.0.0.1:15021")?;
            write!(stream, "GET /healthz/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        self.own.run(request).unwrap().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_until("ztunnel is ready", || self.is_ready());
    }

    /// Its access log: the lines of connections that have ended.
    pub(crate) fn access_log(&self) -> Vec<Value> {
        let log = fs::read_to_string(&self.log).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["scope"] == "access").collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }
}

impl Drop for Ztunnel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines = log.lines().rev().filter(|line| !line.contains("connection complete"));
            let last: Vec<&str> = lines.take(30).collect();
            eprintln!("ztunnel's log without connections, newest first:\n{}", last.join("\n"));
        }
    }
}
