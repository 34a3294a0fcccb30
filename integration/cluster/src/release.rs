//! A release of Gybe: the image of its programs, and its manifests as an operator applies them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gybe_containerd_tests::Image;
use gybe_integration::failure::Failure;

use crate::cluster::Cluster;

/// The clones on the node.
const DIRECTORY: &str = "/run/gybe/releases";

/// Programs and manifests with a version.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    /// The tag of its image.
    pub(crate) version: String,
    /// The directory of the manifests and `dist`.
    tree: PathBuf,
    /// Appended to the programs, so that another release of the same tree has other programs.
    mark: &'static str,
}

impl Release {
    /// A release of the tree: a clone with `dist/gybe` and `dist/gybe-cni`.
    pub(crate) fn new(tree: &Path, version: &str, mark: &'static str) -> Release {
        Release { version: version.to_owned(), tree: tree.to_path_buf(), mark }
    }

    /// Imports the image, and writes an overlay of the manifests that names it.
    pub(crate) fn publish(&self, cluster: &Cluster) -> Result<(), Failure> {
        let read = |name: &str| {
            let path = self.tree.join("dist").join(name);
            let program = fs::read(&path)
                .map_err(|error| Failure::new(format!("{}: {error}; run: make build", path.display())))?;
            Ok::<_, Failure>([program, self.mark.as_bytes().to_vec()].concat())
        };
        let (gybe, plugin) = (read("gybe")?, read("gybe-cni")?);
        let image = Image {
            name: &format!("docker.io/library/gybe:{}", self.version),
            files: &[("opt/gybe/bin/gybe", &gybe), ("opt/gybe/bin/gybe-cni", &plugin)],
            entrypoint: "/opt/gybe/bin/gybe",
            user: "",
        };
        cluster.import(&image)?;
        // As manifests/README.md has it: an overlay of the operator's own beside the clone.
        let host = cluster.host();
        let (clone, overlay) = (host.path(self.clone_path()), host.path(self.overlay()));
        fs::create_dir_all(&clone)?;
        fs::create_dir_all(&overlay)?;
        fs::create_dir_all(clone.join("dist"))?;
        fs::write(clone.join("dist/gybe"), &gybe)?;
        fs::set_permissions(clone.join("dist/gybe"), Permissions::from_mode(0o755))?;
        for name in ["manifests", "docs", "README.md"] {
            host.run(Path::new("cp"), &["-r", &self.tree.join(name).to_string_lossy(), &self.clone_path()])?;
        }
        fs::write(overlay.join("kustomization.yaml"), self.kustomization())?;
        Ok(())
    }

    fn kustomization(&self) -> String {
        format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\n\
             kind: Kustomization\n\
             resources: [../gybe/manifests/overlays/default]\n\
             images: [{{ name: gybe, newTag: '{}' }}]\n",
            self.version
        )
    }

    /// Applies the manifests with a component and its setting, and waits as [`Release::install`].
    pub(crate) fn install_with(
        &self,
        cluster: &Cluster,
        component: &str,
        (key, value): (&str, &str),
    ) -> Result<(), Failure> {
        let overlay = format!("{DIRECTORY}/{}/with-{component}", self.version);
        let kustomization = format!(
            "{}components: [../gybe/manifests/components/{component}]\n\
             patches:\n\
             - target: {{ kind: ConfigMap, name: gybe-config }}\n  \
               patch: '[{{ \"op\": \"add\", \"path\": \"/data/{key}\", \"value\": \"{value}\" }}]'\n",
            self.kustomization()
        );
        let host = cluster.host().path(&overlay);
        fs::create_dir_all(&host)?;
        fs::write(host.join("kustomization.yaml"), kustomization)?;
        cluster.run("kubectl", &["apply", "-k", &overlay])?;
        roll_out(cluster)
    }

    /// The clone on the node, without sources.
    pub(crate) fn clone_path(&self) -> String {
        format!("{DIRECTORY}/{}/gybe", self.version)
    }

    /// The operator's overlay on the node.
    fn overlay(&self) -> String {
        format!("{DIRECTORY}/{}/mesh", self.version)
    }

    /// Applies the manifests and waits until the DaemonSet is rolled out.
    pub(crate) fn install(&self, cluster: &Cluster) -> Result<(), Failure> {
        self.apply(cluster)?;
        roll_out(cluster)
    }

    pub(crate) fn apply(&self, cluster: &Cluster) -> Result<(), Failure> {
        cluster.run("kubectl", &["apply", "-k", &self.overlay()]).map(drop)
    }
}

/// Waits until all agents are of the applied version and ready.
pub(crate) fn roll_out(cluster: &Cluster) -> Result<(), Failure> {
    let rollout = ["-n", "gybe-system", "rollout", "status", "daemonset", "gybe-node", "--timeout=120s"];
    cluster.run("kubectl", &rollout).map(drop).map_err(|error| {
        cluster.with_pods(&error, "gybe-system", &["-l", "app.kubernetes.io/name=gybe-node"])
    })
}
