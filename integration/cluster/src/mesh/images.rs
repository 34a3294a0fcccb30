//! The images of the mesh: istiod, the proxy (pilot-agent and Envoy), istio-cni, and the application, with the
//! machine's C library.

use std::fs;
use std::path::Path;

use gybe_containerd_tests::{Image, program_under_test};
use gybe_integration::failure::Failure;

use super::workstation::machine_command;
use crate::cluster::Cluster;

/// The repository and tag of Istio's images.
pub(super) const HUB: &str = "localhost/istio";
pub(super) const TAG: &str = "module";
/// The application's image in a cluster into which it is imported.
pub(super) const APPLICATION: &str = "localhost/gybe-mesh-application:1";

/// The user of istiod and of the proxy in Istio's images.
const PROXY_USER: &str = "1337:1337";

/// Imports the images. `programs` has Envoy, `istio` Istio's programs and a link to its module.
pub(super) fn import(cluster: &Cluster, programs: &Path, istio: &Path) -> Result<(), Failure> {
    let discovery = fs::read(istio.join("pilot-discovery"))?;
    import_files(
        cluster,
        &format!("{HUB}/pilot:{TAG}"),
        &[("usr/local/bin/pilot-discovery".to_owned(), discovery)],
        PROXY_USER,
    )?;
    let envoy = programs.join("envoy");
    // As Istio's own image has them (pilot/docker/Dockerfile.proxyv2).
    let bootstrap = istio.join("istio/tools/packaging/common/envoy_bootstrap.json");
    let mut proxy = vec![
        ("usr/local/bin/pilot-agent".to_owned(), fs::read(istio.join("pilot-agent"))?),
        ("usr/local/bin/envoy".to_owned(), fs::read(&envoy)?),
        ("var/lib/istio/envoy/envoy_bootstrap_tmpl.json".to_owned(), fs::read(bootstrap)?),
    ];
    proxy.extend(libraries(&envoy)?);
    import_files(cluster, &format!("{HUB}/proxyv2:{TAG}"), &proxy, PROXY_USER)?;
    import_istio_cni(cluster, istio)?;
    cluster.import_archive(APPLICATION, &application(APPLICATION)?)
}

/// Returns an OCI archive of the application's image with this name.
pub(crate) fn application(name: &str) -> Result<Vec<u8>, Failure> {
    let program = program_under_test("gybe-mesh-application")?;
    let mut files = vec![("usr/local/bin/gybe-mesh-application".to_owned(), fs::read(&program)?)];
    files.extend(libraries(&program)?);
    archive(name, &files, "1000:1000")
}

/// Imports the image of istio-cni's agent, with this machine's iptables for its repair of pods.
fn import_istio_cni(cluster: &Cluster, istio: &Path) -> Result<(), Failure> {
    let mut files = vec![
        ("usr/local/bin/install-cni".to_owned(), fs::read(istio.join("install-cni"))?),
        ("opt/cni/bin/istio-cni".to_owned(), fs::read(istio.join("istio-cni"))?),
    ];
    for family in ["iptables", "ip6tables"] {
        for name in ["", "-save", "-restore"].map(|action| format!("{family}{action}")) {
            files.push((format!("usr/local/bin/{name}"), fs::read(Path::new("/usr/sbin").join(name))?));
        }
    }
    files.extend(libraries(Path::new("/usr/sbin/iptables"))?);
    // The directory of extensions in Debian's libxtables.
    let extensions = format!("usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH);
    for entry in fs::read_dir(Path::new("/").join(&extensions))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((format!("{extensions}/{name}"), fs::read(&path)?));
    }
    import_files(cluster, &format!("{HUB}/install-cni:{TAG}"), &files, "")
}

/// Imports the image of ztunnel with this program.
pub(super) fn import_ztunnel(cluster: &Cluster, program: &Path) -> Result<(), Failure> {
    let mut files = vec![("usr/local/bin/ztunnel".to_owned(), fs::read(program)?)];
    files.extend(libraries(program)?);
    import_files(cluster, &format!("{HUB}/ztunnel:{TAG}"), &files, "")
}

/// Imports an image whose first file is its program.
fn import_files(
    cluster: &Cluster,
    name: &str,
    files: &[(String, Vec<u8>)],
    user: &str,
) -> Result<(), Failure> {
    cluster.import_archive(name, &archive(name, files, user)?)
}

/// Returns an OCI archive of an image whose first file is its program.
fn archive(name: &str, files: &[(String, Vec<u8>)], user: &str) -> Result<Vec<u8>, Failure> {
    let entrypoint = files.first().map(|(path, _)| format!("/{path}")).unwrap_or_default();
    let files: Vec<_> = files.iter().map(|(path, content)| (path.as_str(), content.as_slice())).collect();
    Ok(Image { name, files: &files, entrypoint: &entrypoint, user }.archive()?)
}

/// Returns the shared libraries of a program, and the program that loads them, as ldd(1) lists them.
fn libraries(program: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let output = machine_command("ldd").arg(program).output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::new(format!("ldd {}: {message}", program.display())));
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let paths = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(|path| Ok((path.trim_start_matches('/').to_owned(), fs::read(path)?))).collect()
}
