# Sourced by tools/run: answers --help and the like, and refuses wrong options and values, before anything is installed or
# built. Needs bash and cat only. What the options are is read from docs/options.md, which launch_shm makes of its tables;
# the messages are those of launch_shm. Where it is not certain that a value is wrong, it passes: launch_shm decides.
# shellcheck shell=bash
# shellcheck disable=SC2154  # root is set by tools/setup.sh

declare -A form_of bounds_of  # by the name of the option: `N`, `async|ssp|sync`; `1 to 256`
options=()                    # --NAME, in the order of the page
real='([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?'

read_options() {
  local line cell programs meaning
  while IFS= read -r line; do
    [[ $line == '| `--'* ]] || continue
    IFS='|' read -r _ cell _ _ programs _ meaning _ <<<"${line//'\|'/$'\1'}"
    [[ $programs == *launch_shm* && $cell =~ ^' `--'([a-z0-9-]+)' '?(.*)'` '$ ]] || continue
    options+=("--${BASH_REMATCH[1]}")
    form_of[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]//$'\1'/|}
    [[ ! $meaning =~ \(([^\(]*)\)' '$ ]] || bounds_of[${options[-1]#--}]=${BASH_REMATCH[1]}
  done <"$root/docs/options.md"
}

# refuse MESSAGE: as launch_shm does, for those, too, who read its JSON object from standard output.
refuse() {
  local message=$1
  [[ $message == '--: '* ]] || message+=' (see --help)'
  printf 'tools/run: %s\n' "$message" >&2
  if [[ -n $has_json ]]; then
    message=${message//'\'/'\\'}
    printf '{"error":"%s","exit_code":2}\n' "${message//'"'/'\"'}"
  fi
  exit 2
}

# distance A B: sets `apart` to the number of letters that are wrong, missing, too many or swapped with the next.
distance() {
  local a=$1 b=$2 i j cost least last_row=() row=() next=()
  for ((j = 0; j <= ${#b}; ++j)); do row[j]=$j; done
  for ((i = 1; i <= ${#a}; ++i)); do
    next=("$i")
    for ((j = 1; j <= ${#b}; ++j)); do
      [[ ${a:i-1:1} == "${b:j-1:1}" ]] && cost=0 || cost=1
      ((least = row[j] + 1, least = next[j - 1] + 1 < least ? next[j - 1] + 1 : least, 1))
      ((least = row[j - 1] + cost < least ? row[j - 1] + cost : least, 1))
      if ((i > 1 && j > 1)) && [[ ${a:i-1:1} == "${b:j-2:1}" && ${a:i-2:1} == "${b:j-1:1}" ]]; then
        ((least = last_row[j - 2] + 1 < least ? last_row[j - 2] + 1 : least, 1))
      fi
      next[j]=$least
    done
    last_row=("${row[@]}") row=("${next[@]}")
  done
  apart=${row[${#b}]}
}

folded() { local word=${1,,}; printf '%s' "${word//[-_]/}"; }

# did_you_mean WORD KNOWN...: prints the part of the message, where one of these is near.
did_you_mean() {
  local wanted one letters best='' least apart
  wanted=$(folded "$1")
  least=$((${#wanted} / 3 > 1 ? ${#wanted} / 3 + 1 : 2))
  shift
  for one in "$@"; do
    letters=$(folded "$one")
    distance "$wanted" "$letters"
    if ((${#wanted} >= 3 && apart > 1)) && [[ $letters == "$wanted"* ]]; then apart=1; fi
    if ((apart < least)); then best=$one least=$apart; fi
  done
  [[ -z $best ]] || printf '; did you mean %s?' "$best"
}

# The checks of values: each sets `wrong` to what is wrong, and leaves it empty where nothing is.

# check_whole VALUE [BOUNDS]
check_whole() {
  local least=0 most=
  [[ ! ${2:-} =~ ^([0-9]+)' to '([0-9]+)$ ]] || least=${BASH_REMATCH[1]} most=${BASH_REMATCH[2]}
  [[ ! ${2:-} =~ ^'at least '([0-9]+)$ ]] || least=${BASH_REMATCH[1]}
  if [[ $1 =~ ^-[0-9]+$ ]]; then
    wrong="must be at least $least"
  elif [[ ! $1 =~ ^[0-9]+$ ]]; then
    wrong="'$1' is not an integer"
  elif ((${#1} <= 18)); then  # more digits are more than bash can compare
    ((10#$1 >= least)) || wrong="must be at least $least"
    [[ -z $most ]] || ((10#$1 <= most)) || wrong="must be at most $most"
  fi
}

# check_real VALUE [BOUNDS]
check_real() {
  local mantissa=${1%%[eE]*}
  if [[ ! $1 =~ ^-?$real$ ]]; then
    wrong="'$1' is not a number"
  elif [[ $1 == -*[1-9]* && $mantissa == *[1-9]* ||
    ${2:-} == *'less than 1' && $mantissa == "$1" && ${1%%.*} == *[1-9]* ]]; then
    wrong="must be $2"
  fi
}

# check_amount VALUE WHAT UNIT|... EXAMPLES
check_amount() {
  if [[ ! ${1,,} =~ ^(-?)$real($3)?$ ]]; then
    wrong="'$1' is not a $2; write $4"
  elif [[ $1 == -* && ${BASH_REMATCH[2]} == *[1-9]* ]]; then
    wrong="must be at least 0"
  fi
}
check_time() { check_amount "$1" time 'ms|us|ns|s|m|min|h' '100us, 5ms, 2s, 5m, 1h or plain seconds'; }
check_size() {
  check_amount "$1" size '[kmgt]ib|[bkmgt]' '64KiB, 64K, 4MiB, 1GiB or plain bytes'
  [[ -n $wrong || ${BASH_REMATCH[2]} == *[1-9]* ]] || wrong="must be greater than 0"
}
# check_size_or_word VALUE WORD|...
check_size_or_word() {
  local words
  IFS='|' read -ra words <<<"$2"
  if [[ "|$2|" != *"|$(folded "$1")|"* ]]; then
    if [[ $1 == [a-zA-Z]* ]]; then
      wrong="'$1' is not a size, ${2//|/ or }$(did_you_mean "$1" "${words[@]}")"
    else
      check_size "$1"
    fi
  fi
}
check_interval() {
  local word
  word=$(folded "$1")
  if [[ $word =~ steps?$ ]]; then
    check_whole "${1:0:${#1}-${#BASH_REMATCH}}" 'at least 1'
  elif [[ $1 != *[a-zA-Z] ]]; then
    wrong="'$1' is not an interval; write 60s, 5m or 1000steps"
  else
    check_time "$1"
  fi
}

# check_choice NAME VALUE WORD|...
check_choice() {
  local word words
  IFS='|' read -ra words <<<"$3"
  for word in "${words[@]}"; do [[ $(folded "$2") != "$(folded "$word")" ]] || return 0; done
  wrong="unknown $1 '$2'; expected $3$(did_you_mean "$2" "${words[@]}")"
}

# check_delay SPEC: a time or a factor, and after an @ a share of the steps.
check_delay() {
  local size=${1%%@*}
  if [[ $size == *x ]]; then check_real "${size%x}"; else check_time "$size"; fi
  [[ $wrong != 'must be ' ]] || wrong='a factor must be at least 1 and at most 1000000'
  [[ -n $wrong || $1 != *@* ]] || check_real "${1#*@}"
  [[ $wrong != 'must be ' ]] || wrong='a fraction must be greater than 0 and at most 1'
}

# check_by_rank NAME VALUE: SPEC, RANK:SPEC or all:SPEC, several with commas between them. cuda:N is a SPEC.
check_by_rank() {
  local one rank specs spec
  IFS=, read -ra specs <<<"$2"
  for one in "${specs[@]}"; do
    rank=${one%%:*} spec=${one#*:}
    if [[ $one != *:* || $rank == cuda ]]; then
      spec=$one
    elif [[ $rank != all ]]; then
      check_whole "$rank" '0 to 255'
    fi
    case $1 in
      delay) [[ -n $wrong ]] || check_delay "$spec" ;;
      device)
        [[ -n $wrong || $spec =~ ^(cpu|auto|cuda(:[0-9]+)?|simulated)$ ]] ||
          wrong="unknown device '$spec'; expected cpu, auto, cuda, cuda:N or simulated"
        ;;
      wire)
        [[ -n $wrong || $spec == @(float32|bf16|bf16-push) ]] ||
          wrong="unknown wire '$spec'; expected float32|bf16|bf16-push"
        ;;
    esac
    [[ -z $wrong ]] || return 0
  done
}

# check_value NAME VALUE [SOURCE]: refuses a value that is not of the option's form, or out of its bounds.
check_value() {
  local form=${form_of[$1]} bounds=${bounds_of[$1]:-} source=${3:---$1} wrong=
  case $form in
    N) check_whole "$2" "$bounds" ;;
    'N|LO..HI')
      if [[ $2 != *..* && $2 == ?*-* ]]; then
        wrong="'$2' is not a number; a range is written LO..HI, such as 2..4"
      else
        check_whole "${2%%..*}" "$bounds"
        [[ -n $wrong || $2 != *..* ]] || check_whole "${2#*..}" "$bounds"
        [[ -n $wrong || $2 != *..* ]] || ((10#${2#*..} >= 10#${2%%..*})) ||
          wrong="'$2' has no number in it; the smaller one comes first, as in 2..4"
      fi
      ;;
    X) check_real "$2" "$bounds" ;;
    TIME) check_time "$2" ;;
    SIZE) check_size "$2" ;;
    'SIZE|'*) check_size_or_word "$2" "${form#*|}" ;;
    INTERVAL) check_interval "$2" ;;
    *RANK:*) check_by_rank "$1" "$2" ;;
    '') [[ ${2,,} =~ ^(true|false|on|off|yes|no|enable|disable|[tfyn+-]|[+-]?[0-9]+)$ ]] ||
      wrong="'$2' is neither true nor false" ;;
    *[A-Z]*) ;;  # the name of something, which only launch_shm can judge
    *) check_choice "$1" "$2" "$form" ;;
  esac
  case $wrong in
    '') ;;
    'must '*) refuse "$source $wrong" ;;
    *) refuse "$source: $wrong" ;;
  esac
}

# answer OPTION: what launch_shm prints, from the pages of docs/ that it made; returns 1 where it takes the program.
answer() {
  case $1 in
    -h | --help) cat "$root/docs/help.txt" ;;
    --help-all) cat "$root/docs/help-all.txt" ;;
    --help-markdown) cat "$root/docs/options.md" ;;
    --version)
      [[ ! -x $root/build/run/tools/launch_shm ]] || exec "$root/build/run/tools/launch_shm" --version
      local line
      while IFS= read -r line; do
        [[ ! $line =~ ^' '+"version: '"([0-9.]+)"'" ]] || printf 'launch_shm %s\n' "${BASH_REMATCH[1]}"
      done <"$root/meson.build"
      printf 'build     none yet; tools/run makes it\n'
      ;;
  esac
}

# check_options ARGUMENT...: ends the script where there is an answer or something to refuse.
check_options() {
  local argument name variable asked='' given=' ' has_json=''
  local LC_ALL=C  # in Turkish the capital of i is another letter than I
  [[ " $* " != *' --json '* ]] || has_json=1
  read_options
  while (($# > 0)); do
    argument=$1 name=${1%%=*}
    shift
    case $argument in
      --) [[ -n $asked ]] || (($# > 0)) || refuse "--: name a program after it"
        break ;;
      -h | --help | --help-all | --help-markdown | --version)
        asked=${asked:-$argument}
        continue
        ;;
    esac
    if [[ $name != --* || " ${options[*]} " != *" $name "* ]]; then
      [[ -z $asked ]] || break
      [[ $argument == -* ]] || refuse "'$argument': every argument is an option or its value, as in --job $argument"
      refuse "$name: no such option$(did_you_mean "$name" "${options[@]}")"
    fi
    given+="$name "
    if [[ $argument == *=* ]]; then
      check_value "${name#--}" "${argument#*=}"
    elif [[ -n ${form_of[${name#--}]} ]]; then
      (($# > 0)) || refuse "$name: the value is missing; give $name ${form_of[${name#--}]}"
      check_value "${name#--}" "$1"
      shift
    fi
  done
  if [[ -n $asked ]]; then
    answer "$asked"
    exit
  fi
  for argument in "${options[@]}"; do
    variable=PS_SHM_${argument#--} variable=${variable//-/_} variable=${variable^^}
    [[ -z ${!variable:-} || $given == *" $argument "* ]] || check_value "${argument#--}" "${!variable}" "environment variable $variable"
  done
}
