# Shown before every command: folder, branch, and whether the last command failed.
git_branch() {
  local branch
  branch=$(git symbolic-ref --short HEAD 2>/dev/null) || return
  printf ' (%s)' "$branch"
}

prompt_status() {
  local code=$?
  if [ "$code" -ne 0 ]; then printf '[%d] ' "$code"; fi
}

export PS1='$(prompt_status)\w$(git_branch)\$ '
export HISTSIZE=100000
alias ll='ls -l --human-readable'
alias ..='cd ..'
for folder in "$HOME/bin" "$HOME/.local/bin"; do
  if [ -d "$folder" ]; then PATH="$folder:$PATH"; fi
done
