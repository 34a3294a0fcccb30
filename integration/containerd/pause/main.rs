//! The process a sandbox is made around: it holds the namespaces and does nothing else.

fn main() {
    loop {
        std::thread::park();
    }
}
