//! Processes that do not outlive the test.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

type Job = (Command, Sender<Result<Child>>);

/// Starts a command that the system kills should this process die, however it dies.
///
/// `setpriv --pdeathsig` sees to that where it exists. The system takes the *thread* that started a process for its
/// parent, and a test's thread ends with the test; so one thread that lives as long as the process starts them all.
pub fn spawn(command: Command) -> Result<Child> {
    static STARTER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (answer, child) = channel();
    starter.lock().unwrap().send((command, answer)).expect("the starting thread lives");
    child.recv().expect("the starting thread answers")
}

/// A command that runs `program`, through `setpriv` if the system has it.
pub fn command(program: &Path) -> Command {
    static SETPRIV: OnceLock<Option<PathBuf>> = OnceLock::new();
    match SETPRIV.get_or_init(|| in_path("setpriv")) {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// Where a program of that name is, if it is in the PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
