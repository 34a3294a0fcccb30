//! The agent's health port accepts connections to every address of the node, of either family.

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::programs::path_of_ours;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// An agent that installs into directories of the test, in the test's network namespace. Dropping it ends the agent.
struct Keeping {
    place: PathBuf,
    child: Child,
}

impl Keeping {
    fn on(node: &Namespace) -> Self {
        let place = std::env::temp_dir().join(format!("gybe-listens-{}", std::process::id()));
        for folder in ["net.d", "bin", "pods", "image"] {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        let gybe = path_of_ours("gybe").unwrap();
        #[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
        let mut command = Command::new(&gybe);
        command.env_clear().env("GYBE_PROGRAMS_DIR", gybe.parent().unwrap());
        for (name, folder) in [
            ("MOUNTED_CNI_NET_DIR", "net.d"),
            ("MOUNTED_CNI_BIN_DIR", "bin"),
            ("CNI_AGENT_RUN_DIR", "run"),
            ("GYBE_CONFIG_DIR", "config"),
        ] {
            command.env(name, place.join(folder));
        }
        command.args(["node", "--install", "--pods-from"]).arg(place.join("pods"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = node.run(|| command.spawn()).unwrap().unwrap();
        Self { place, child }
    }

    /// Waits for the agent's log line that it listens.
    fn listens(&mut self) {
        let stderr = BufReader::new(self.child.stderr.take().unwrap());
        let mut lines = stderr.lines().map(Result::unwrap);
        let mut heard = lines.by_ref().filter(|line| line.contains("gybe node: listens"));
        assert!(heard.any(|line| line.contains("\"for\":\"health\"")), "the agent ended before it listened");
        // Reads on, because the agent would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.place);
    }
}

fn asked(address: &str) -> String {
    let mut answer = String::new();
    let mut caller = match TcpStream::connect(address) {
        Ok(caller) => caller,
        Err(why) => return why.to_string(),
    };
    caller.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    caller.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn with_bindv6only_the_health_port_accepts_ipv4_too() {
    let node = Namespace::new().unwrap();
    node.run(|| fs::write("/proc/sys/net/ipv6/bindv6only", "1")).unwrap().unwrap();
    let mut agent = Keeping::on(&node);
    agent.listens();
    for address in ["[::1]:8000", "127.0.0.1:8000"] {
        let answer = node.run(|| asked(address)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{address}: {answer}");
    }
}
