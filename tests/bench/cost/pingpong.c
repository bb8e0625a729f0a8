/* Two processes that hand a byte to and fro through pipes: nothing but wake-ups and switches.
 *
 * Writes "ready"; then for each line with a number, plays so many turns (there and back) and writes
 * how many nanoseconds one took. Ends with its input.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(void)
{
	int there[2], back[2];
	char line[32], byte = 0;

	if (pipe(there) || pipe(back))
		return 1;
	if (fork() == 0) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1)
			if (write(back[1], &byte, 1) != 1)
				break;
		_exit(0);
	}
	close(there[0]);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long turns = atol(line);
		long long begun = now_ns();

		for (long turn = 0; turn < turns; turn++)
			if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				return 1;
		printf("%.1f\n", turns ? (double)(now_ns() - begun) / turns : 0.0);
		fflush(stdout);
	}
	return 0;
}
