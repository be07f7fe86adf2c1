<<<<<<< HEAD
//! The `tidegate` command.

=======
>>>>>>> limits
fn main() {}
