//! The files that a command reads. Before a command opens a file for its results, it checks that
//! the file is none of these. A report would otherwise overwrite a key file that the user named by
//! mistake.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use remora::connect::{Nodes, Place};
use remora::floors::membership::LockedFile;
use remora_fabric::sim::Profile;

use crate::Failure;

/// The files that a command reads, each with the option that names it.
#[derive(Clone, Debug, Default)]
pub struct Inputs(Vec<Input>);

#[derive(Clone, Debug)]
struct Input {
    /// A description of the input: the option and the file.
    what: String,
    path: PathBuf,
}

impl Inputs {
    /// Adds the file that an option names, if the option is given.
    #[must_use]
    pub fn with(mut self, option: &str, path: Option<&Path>) -> Inputs {
        if let Some(path) = path {
            self.add(format!("{option} {}", path.display()), path);
        }
        self
    }

    /// Adds the profile that an option names, if the profile is a file.
    #[must_use]
    pub fn with_profile(self, option: &str, name: Option<&OsStr>) -> Inputs {
        let file = name.filter(|name| name.to_str().and_then(Profile::named).is_none());
        self.with(option, file.map(Path::new))
    }

    /// Adds the configuration that `--configuration` names, if the configuration is a file, and
    /// the file that locks it.
    #[must_use]
    pub fn with_configuration(mut self, place: Option<&Place>) -> Inputs {
        if let Some(Place::File(path)) = place {
            self.add_configuration(format!("--configuration {}", path.display()), path);
        }
        self
    }

    /// Adds the memory nodes that `--connect` names, if they are files, and the configuration that
    /// may be beside each of them.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Option<&Nodes>) -> Inputs {
        if let Some(Nodes::Shm(paths)) = nodes {
            for path in paths {
                let what = format!("the memory node {} of --connect", path.display());
                self.add_configuration(format!("the configuration of {what}"), &LockedFile::beside(path));
                self.add(what, path);
            }
        }
        self
    }

    fn add(&mut self, what: String, path: &Path) {
        self.0.push(Input { what, path: path.to_owned() });
    }

    fn add_configuration(&mut self, what: String, path: &Path) {
        self.add(format!("the lock of {what}"), &LockedFile::lock_of(path));
        self.add(what, path);
    }

    /// Refuses a result that would overwrite an input. `outputs` are the files that the command
    /// will write, each with its option. A command calls this before it opens any of them.
    pub fn check(&self, outputs: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
        for (option, path) in outputs {
            let Some((path, output)) = path.and_then(|path| Some((path, identity(path)?))) else { continue };
            if let Some(input) = self.0.iter().find(|input| identity(&input.path).as_ref() == Some(&output)) {
                let why = format!("would overwrite {}: name another file", input.what);
                return Err(Failure::new(format!("{option} {}", path.display()), why));
            }
        }
        Ok(())
    }
}

/// The identity of a file, which tells whether two paths lead to one file, also through links and
/// `./`. It is the file's device and inode. A file that does not exist yet has the device and the
/// inode of its folder, and a name.
#[derive(PartialEq, Eq, Debug)]
struct Identity {
    inode: (u64, u64),
    name: Option<OsString>,
}

/// Returns the identity of a file. Returns `None` for a device or a pipe, which a result does not
/// overwrite, and for a path at which no file can be opened.
fn identity(path: &Path) -> Option<Identity> {
    /// The number of links that the system follows.
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=LINKS_MAX {
        match fs::metadata(&path) {
            Ok(file) if file.is_file() => return Some(Identity { inode: (file.dev(), file.ino()), name: None }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(_) | Err(_) => return None,
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::read_link(&path) {
            // Opening the link for writing would create the file that it names.
            Ok(target) => path = folder.join(target),
            Err(_) => {
                let folder = fs::metadata(folder).ok()?;
                return Some(Identity {
                    inode: (folder.dev(), folder.ino()),
                    name: Some(path.file_name()?.to_owned()),
                });
            }
        }
    }
    None
}
