//! A user's crate, outside of this workspace, that depends only on the library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The README's first program.
fn readme_program(root: &Path) -> String {
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, behind) = readme.split_once("```rust\n").expect("a program");
    behind.split_once("```").expect("its end").0.to_owned()
}

/// Makes the crate, and gives the command that builds it.
fn users_crate(name: &str, dependency: &str, root: &Path) -> (Command, PathBuf) {
    let folder = env::temp_dir().join(format!("remora-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"users-crate\"\nedition = \"2024\"\n\n[dependencies]\nremora = {{ {dependency} }}\n\n\
         [profile.dev]\ndebug = false\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.join("src/main.rs"), readme_program(root)).unwrap();
    // The versions of other crates that this workspace uses, so that nothing is downloaded.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    // The environment of this test's build is not the one of a user.
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("CARGO_") && name != "CARGO_HOME") {
        cargo.env_remove(name);
    }
    cargo.current_dir(&folder).env("CARGO_INCREMENTAL", "0");
    (cargo, folder)
}

fn runs(name: &str, dependency: &str, command: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let (mut cargo, folder) = users_crate(name, dependency, root);
    // Beside this build's own, so that a second run finds what the first has built.
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    let output = cargo.args(command).output().unwrap();
    fs::remove_dir_all(folder).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The README's program needs no other crate than `remora`.
#[test]
#[ignore = "long: builds everything again, a part of .ci/long"]
fn the_readmes_program_is_a_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    runs("by-path", &format!("path = {root:?}"), &["run", "--offline"]);
}

/// `cargo add remora --git` finds the library in the repository.
#[test]
#[ignore = "long: needs the repository, and builds everything again"]
fn the_library_is_found_by_git() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    // Cargo takes a repository for online, wherever it is.
    runs("by-git", &format!("git = \"file://{}\"", root.display()), &["check"]);
}
