//! The kernel ends a sidecar, because the memory of its control group is used up.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;

/// More than a sidecar needs, and so little that it is soon used up.   bytes
const MEMORY: u64 = 96 << 20;

/// Takes memory until the process of its argument has ended. The kernel ends that one first, by its score.
const EATER: &str = "import os, sys\n\
                     eaten = []\n\
                     while os.path.exists('/proc/' + sys.argv[1] + '/exe'):\n    eaten.append(bytearray(1 << 20))\n";

/// A control group with little memory, below the one of this process.
pub(super) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// The group, or the reason why there can be none.
    pub(super) fn create() -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|it| it.to_string())?;
        let path = |line: &str| {
            let (_, path) = line
                .split_once(":memory:")
                .map_or_else(|| line.split_once("0::"), Some)?;
            Some(path.to_owned())
        };
        let of_memory = own.lines().find(|line| line.contains(":memory:"));
        let (root, limit) = match of_memory {
            Some(_) => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            None => ("/sys/fs/cgroup", "memory.max"),
        };
        let line = of_memory.or_else(|| own.lines().find(|line| line.starts_with("0::")));
        let own = line.and_then(path).ok_or("there is no control group")?;
        let name = format!("tidegate-restarts-{}", std::process::id());
        let folder = PathBuf::from(format!("{root}{own}")).join(name);
        let needs = |error: std::io::Error| {
            format!(
                "no group with a limit on memory can be made below {own}, which takes root: {error}"
            )
        };
        fs::create_dir(&folder).map_err(needs)?;
        let group = Self(folder);
        fs::write(group.0.join(limit), MEMORY.to_string()).map_err(needs)?;
        Ok(group)
    }

    /// Runs a program in the group, as the first that the kernel ends.
    pub(super) fn command(&self, binary: &str) -> Command {
        self.run("1000", &[binary])
    }

    fn run(&self, score: &str, program: &[&str]) -> Command {
        let script = format!(
            "echo $$ >'{}' && echo {score} >/proc/self/oom_score_adj && exec \"$@\"",
            self.0.join("cgroup.procs").display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).args(program);
        command
    }

    /// Uses up the memory until the kernel has ended this process.
    pub(super) async fn use_up(&self, pid: u32) {
        let pid = pid.to_string();
        let eats = self.run("0", &["python3", "-c", EATER, &pid]).output();
        let eaten = tokio::time::timeout(Duration::from_secs(30), eats).await;
        eaten.expect("it ends").expect("python3 is there");
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may still be in it.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
