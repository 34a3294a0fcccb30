//! The pause process of a sandbox: keeps its namespaces open.

fn main() {
    loop {
        std::thread::park();
    }
}
